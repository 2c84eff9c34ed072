import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own producer, or member of a group, of whatever release is on the class path: numbered records at a steady
 * pace, what became of them and when (as tests/go/honest/paced), and the longest throttle time. What the client logs as
 * a warning or an error counts as an error. Arguments: `produce` or `read`, bootstrap address, topic, records per
 * second, seconds, bytes of a record; then settings, `name=value`.
 */
public class Paced {
    private static final List<Integer> NUMBERS = Collections.synchronizedList(new ArrayList<>());
    private static final List<Double> TIMES = Collections.synchronizedList(new ArrayList<>());
    private static final List<String> ERRORS = Collections.synchronizedList(new ArrayList<>());
    private static int sent = 0;
    private static double throttled = 0;

    public static void main(String[] args) {
        ByteArrayOutputStream logged = new ByteArrayOutputStream();
        System.setErr(new PrintStream(logged, true));
        boolean produces = args[0].equals("produce");
        double seconds = Double.parseDouble(args[4]);
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", args[1]);
        for (int n = 6; n < args.length; n++) {
            settings.put(args[n].split("=", 2)[0], args[n].split("=", 2)[1]);
        }
        try {
            if (produces) {
                produce(settings, args[2], Double.parseDouble(args[3]), seconds, Integer.parseInt(args[5]));
            } else {
                read(settings, args[2], seconds);
            }
        } catch (ReflectiveOperationException | RuntimeException error) {
            ERRORS.add(error.toString());
        }
        logged.toString().lines()
                .filter(line -> line.contains("] WARN ") || line.contains("] ERROR "))
                .forEach(ERRORS::add);
        String errors = ERRORS.stream().map(one -> '"' + one.replaceAll("[\\\\\"\\p{Cntrl}]", " ") + '"')
                .collect(Collectors.joining(", "));
        System.out.printf("{\"sent\": %d, \"%s\": %s, \"times\": %s, \"throttled_ms\": %f, \"errors\": [%s]}%n",
                sent, produces ? "acked" : "read", NUMBERS, TIMES, throttled, errors);
    }

    private static void produce(Map<String, Object> settings, String topic, double perS, double seconds, int bytes) {
        ByteArraySerializer as = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, as, as)) {
            long begin = System.nanoTime();
            double due = 0;
            for (double now = 0; now < seconds; now = (System.nanoTime() - begin) / 1e9) {
                due = Math.max(due, now - 1);
                if (due > now) {
                    pause(due - now);
                }
                due += 1 / perS;
                int number = sent++;
                StringBuilder text = new StringBuilder(String.format("%012d ", number));
                while (text.length() < bytes) {
                    text.append((char) ('a' + ThreadLocalRandom.current().nextInt(26)));
                }
                producer.send(new ProducerRecord<>(topic, text.toString().getBytes()), (told, error) -> {
                    if (error == null) {
                        NUMBERS.add(number);
                        TIMES.add(System.currentTimeMillis() / 1e3);
                    } else {
                        ERRORS.add(error.toString());
                    }
                });
            }
            producer.flush();
            throttled = throttled(producer.metrics());
        }
    }

    private static void read(Map<String, Object> settings, String topic, double seconds)
            throws ReflectiveOperationException {
        ByteArrayDeserializer as = new ByteArrayDeserializer();
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, as, as)) {
            consumer.subscribe(List.of(topic));
            long begin = System.nanoTime();
            while ((System.nanoTime() - begin) / 1e9 < seconds) {
                for (ConsumerRecord<byte[], byte[]> record : poll(consumer)) {
                    NUMBERS.add(Integer.parseInt(new String(record.value(), 0, 12)));
                    TIMES.add(System.currentTimeMillis() / 1e3);
                }
            }
            throttled = throttled(consumer.metrics());
        }
    }

    /** poll(Duration) came with Kafka 2.0, poll(long) went with 4.0. */
    @SuppressWarnings("unchecked")
    private static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer)
            throws ReflectiveOperationException {
        Object found;
        try {
            found = consumer.getClass().getMethod("poll", Duration.class).invoke(consumer, Duration.ofMillis(500));
        } catch (NoSuchMethodException old) {
            found = consumer.getClass().getMethod("poll", long.class).invoke(consumer, 500L);
        } catch (InvocationTargetException error) {
            ERRORS.add(error.getCause().toString());
            return ConsumerRecords.empty();
        }
        return (ConsumerRecords<byte[], byte[]>) found;
    }

    private static double throttled(Map<MetricName, ? extends Metric> metrics) {
        return metrics.entrySet().stream()
                .filter(one -> one.getKey().name().endsWith("throttle-time-max"))
                .mapToDouble(one -> ((Number) one.getValue().metricValue()).doubleValue())
                .filter(Double::isFinite).max().orElse(0);
    }

    private static void pause(double seconds) {
        try {
            Thread.sleep(Math.round(seconds * 1e3));
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
