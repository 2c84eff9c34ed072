import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers that each have a partition of their own and always so many records under way, and what became of those
 * (benchmarks/suites/goodput.py). Arguments: bootstrap address, topic, producers, records under way, seconds, bytes of a
 * record; then settings, `name=value`.
 */
public class Crowd {
    private static final List<String> ACKED = Collections.synchronizedList(new ArrayList<>());
    private static final AtomicInteger GIVEN_UP = new AtomicInteger();

    public static void main(String[] args) throws InterruptedException {
        ByteArrayOutputStream logged = new ByteArrayOutputStream();
        System.setErr(new PrintStream(logged, true));
        int count = Integer.parseInt(args[2]), underWay = Integer.parseInt(args[3]), bytes = Integer.parseInt(args[5]);
        double seconds = Double.parseDouble(args[4]);
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", args[0]);
        settings.put("buffer.memory", String.valueOf((underWay + 2L) * bytes));
        for (int n = 6; n < args.length; n++) {
            settings.put(args[n].split("=", 2)[0], args[n].split("=", 2)[1]);
        }
        ByteArraySerializer as = new ByteArraySerializer();
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        AtomicInteger[] open = new AtomicInteger[count];
        int[] sent = new int[count];
        for (int one = 0; one < count; one++) {
            producers.add(new KafkaProducer<>(settings, as, as));
            open[one] = new AtomicInteger();
        }
        long begin = System.nanoTime();
        while (since(begin) < seconds) {
            for (int producer = 0; producer < count; producer++) {
                int one = producer;
                while (open[one].get() < underWay) {
                    open[one].incrementAndGet();
                    int number = sent[one]++;
                    byte[] value = new byte[bytes];
                    Arrays.fill(value, (byte) 'x');
                    byte[] head = String.format("%06d %012d ", one, number).getBytes();
                    System.arraycopy(head, 0, value, 0, head.length);
                    producers.get(one).send(new ProducerRecord<>(args[1], one, null, value), (told, error) -> {
                        open[one].decrementAndGet();
                        if (error == null) {
                            ACKED.add("[" + since(begin) + ", " + one + ", " + number + "]");
                        } else if (error instanceof TimeoutException) {
                            GIVEN_UP.incrementAndGet();
                        }
                    });
                }
            }
            Thread.sleep(5);
        }
        String acked = String.join(", ", new ArrayList<>(ACKED));
        long timeouts = logged.toString().lines().filter(line -> line.contains("NETWORK_EXCEPTION")).count();
        System.out.printf("{\"acked\": [%s], \"given_up\": %d, \"timeouts\": %d}%n", acked, GIVEN_UP.get(), timeouts);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static double since(long begin) {
        return (System.nanoTime() - begin) / 1e9;
    }
}
