import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers that each have a partition of their own and always so many records under way, and what became of those
 * (benchmarks/suites/goodput.py). With a `transactional.id` they send as many records in each transaction. Arguments: bootstrap address, topic, producers, records under way, seconds, bytes of a
 * record, seconds between two records of a producer at least; then settings, `name=value`.
 */
public class Crowd {
    private static final List<String> ACKED = Collections.synchronizedList(new ArrayList<>());
    private static final AtomicInteger GIVEN_UP = new AtomicInteger();

    public static void main(String[] args) throws InterruptedException {
        ByteArrayOutputStream logged = new ByteArrayOutputStream();
        System.setErr(new PrintStream(logged, true));
        int count = Integer.parseInt(args[2]), underWay = Integer.parseInt(args[3]), bytes = Integer.parseInt(args[5]);
        double seconds = Double.parseDouble(args[4]), pause = Double.parseDouble(args[6]);
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", args[0]);
        settings.put("buffer.memory", String.valueOf((underWay + 2L) * bytes));
        for (int n = 7; n < args.length; n++) {
            settings.put(args[n].split("=", 2)[0], args[n].split("=", 2)[1]);
        }
        long begin = System.nanoTime();
        List<Thread> threads = new ArrayList<>();
        for (int producer = 0; producer < count; producer++) {
            int one = producer;
            Map<String, Object> own = new HashMap<>(settings);
            boolean transacts = own.computeIfPresent("transactional.id", (name, id) -> id + "-" + one) != null;
            threads.add(new Thread(() -> {
                if (transacts) {
                    transact(own, args[1], one, underWay, bytes, begin, seconds);
                } else {
                    send(own, args[1], one, underWay, bytes, begin, seconds, pause);
                }
            }));
            threads.get(one).setDaemon(true);
            threads.get(one).start();
        }
        Thread.sleep((long) Math.max((seconds - since(begin)) * 1000, 0));
        String acked = String.join(", ", new ArrayList<>(ACKED));
        long timeouts = logged.toString().lines().filter(line -> line.contains("NETWORK_EXCEPTION")).count();
        long lines = logged.toString().lines().filter(line -> line.matches(".*\\] (WARN|ERROR) .*")).count();
        System.out.printf("{\"acked\": [%s], \"given_up\": %d, \"timeouts\": %d, \"log_lines\": %d}%n",
                acked, GIVEN_UP.get(), timeouts, lines);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void send(Map<String, Object> settings, String topic, int one, int underWay, int bytes, long begin,
            double seconds, double pause) {
        ByteArraySerializer as = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, as, as);
        Semaphore open = new Semaphore(underWay);
        for (int sent = 0; since(begin) < seconds; sent++) {
            int number = sent;
            open.acquireUninterruptibly();
            rest(begin + (long) (number * pause * 1e9));
            producer.send(record(topic, one, number, bytes), (told, error) -> {
                open.release();
                if (error == null) {
                    acknowledged(begin, one, number);
                } else if (error instanceof TimeoutException) {
                    GIVEN_UP.incrementAndGet();
                }
            });
        }
    }

    private static void transact(Map<String, Object> settings, String topic, int one, int underWay, int bytes,
            long begin, double seconds) {
        ByteArraySerializer as = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = null;
        for (int sent = 0; since(begin) < seconds; sent += underWay) {
            try {
                if (producer == null) {
                    producer = new KafkaProducer<>(settings, as, as);
                    producer.initTransactions();
                }
                producer.beginTransaction();
                for (int number = sent; number < sent + underWay; number++) {
                    producer.send(record(topic, one, number, bytes));
                }
                producer.commitTransaction();
                for (int number = sent; number < sent + underWay; number++) {
                    acknowledged(begin, one, number);
                }
            } catch (KafkaException error) {
                GIVEN_UP.addAndGet(underWay);
                System.err.println("[" + one + "] ERROR " + error);
                producer.close(Duration.ZERO);
                producer = null;
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, int one, int number, int bytes) {
        byte[] value = new byte[bytes];
        Arrays.fill(value, (byte) 'x');
        byte[] head = String.format("%06d %012d ", one, number).getBytes();
        System.arraycopy(head, 0, value, 0, head.length);
        return new ProducerRecord<>(topic, one, null, value);
    }

    private static void acknowledged(long begin, int one, int number) {
        ACKED.add("[" + since(begin) + ", " + one + ", " + number + "]");
    }

    private static void rest(long until) {
        try {
            Thread.sleep(Math.max((until - System.nanoTime()) / 1_000_000, 0));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static double since(long begin) {
        return (System.nanoTime() - begin) / 1e9;
    }
}
