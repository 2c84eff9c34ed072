import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * One producer and one consumer, with the library's own settings, at a target rate: an open loop. Latencies count from
 * the moment at which a record was to be sent. Arguments: bootstrap address, topics (separated by commas), records per
 * second, bytes of a record, seconds before measuring, seconds of measuring. Prints "begin" and "end" around the
 * measured time, then one line of JSON.
 */
public class Sweep {
    private static final int MOST = 8_000_000;
    private static volatile long fromNs = Long.MAX_VALUE;
    private static volatile long toNs = Long.MAX_VALUE;
    private static volatile boolean over = false;
    private static final long[] published = new long[MOST];
    private static final AtomicLong publishedCount = new AtomicLong();
    private static final long[] delivered = new long[MOST];
    private static int deliveredCount = 0;
    private static final AtomicLong failed = new AtomicLong();

    public static void main(String[] args) throws InterruptedException {
        List<String> topics = Arrays.asList(args[1].split(","));
        double perS = Double.parseDouble(args[2]);
        int bytes = Integer.parseInt(args[3]);
        double beforeS = Double.parseDouble(args[4]);
        double measuredS = Double.parseDouble(args[5]);
        Map<String, Object> consuming = Map.of("bootstrap.servers", args[0], "client.id", "sweep",
                "group.id", "sweep-" + System.nanoTime(), "auto.offset.reset", "latest");
        Thread reader = new Thread(() -> read(consuming, topics));
        reader.start();
        Map<String, Object> producing = Map.of("bootstrap.servers", args[0], "client.id", "sweep", "linger.ms", "1");
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(producing, new ByteArraySerializer(), new ByteArraySerializer())) {
            topics.forEach(producer::partitionsFor);
            Thread.sleep(3000);  // the group forms
            send(producer, topics, perS, bytes, beforeS, measuredS);
        }
        Thread.sleep(1000);
        over = true;
        reader.join();
        System.out.printf("{\"publish_ms\": %s, \"end_to_end_ms\": %s, \"acknowledged\": %d, \"consumed\": %d, "
                + "\"failed\": %d}%n", percentiles(published, (int) publishedCount.get()),
                percentiles(delivered, deliveredCount), publishedCount.get(), deliveredCount, failed.get());
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, List<String> topics, double perS, int bytes,
            double beforeS, double measuredS) throws InterruptedException {
        byte[] filler = new byte[bytes];
        new Random(1).nextBytes(filler);
        long beganNs = System.nanoTime();
        fromNs = beganNs + (long) (beforeS * 1e9);
        toNs = fromNs + (long) (measuredS * 1e9);
        boolean told = false;
        for (long number = 0;; number++) {
            long dueNs = beganNs + (long) (number * 1e9 / perS);
            long nowNs = System.nanoTime();
            if (!told && nowNs >= fromNs) {
                told = true;
                System.out.println("begin");
            }
            if (dueNs >= toNs || nowNs >= toNs) {
                break;
            }
            while ((nowNs = System.nanoTime()) < dueNs) {
                if (dueNs - nowNs > 200_000) {
                    Thread.sleep(0, 100_000);
                } else {
                    Thread.onSpinWait();
                }
            }
            byte[] value = filler.clone();
            for (int n = 0; n < 8; n++) {
                value[n] = (byte) (dueNs >> 8 * n);
            }
            producer.send(new ProducerRecord<>(topics.get((int) (number % topics.size())), value), (sent, error) -> {
                long doneNs = System.nanoTime();
                if (error != null) {
                    failed.incrementAndGet();
                } else if (dueNs >= fromNs && doneNs < toNs) {
                    published[(int) publishedCount.getAndIncrement()] = doneNs - dueNs;
                }
            });
        }
        System.out.println("end");
    }

    private static void read(Map<String, Object> settings, List<String> topics) {
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(topics);
            while (!over) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    long nowNs = System.nanoTime();
                    long dueNs = 0;
                    for (int n = 0; n < 8; n++) {
                        dueNs |= (record.value()[n] & 0xFFL) << 8 * n;
                    }
                    if (dueNs >= fromNs && nowNs < toNs) {
                        delivered[deliveredCount++] = nowNs - dueNs;
                    }
                }
            }
        }
    }

    private static String percentiles(long[] values, int count) {
        Arrays.sort(values, 0, count);
        List<String> found = new ArrayList<>();
        for (double share : new double[] {0.5, 0.99, 0.999}) {
            found.add(count == 0 ? "null" : String.format("%.3f", values[(int) Math.min(count - 1, share * count)] / 1e6));
        }
        return found.toString();
    }
}
