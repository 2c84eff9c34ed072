import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/**
 * Instances of a Streams application with exactly_once_v2 that makes several large records of each small one, and what
 * became of the instances (benchmarks/suites/goodput_apps.py). Arguments: bootstrap address, topic written (the one
 * read is `TOPIC-in`), instances, seconds, bytes of a record, records made of one,
 * megabytes that the producer holds.
 */
public class Copies {
    public static void main(String[] args) throws InterruptedException {
        ByteArrayOutputStream logged = new ByteArrayOutputStream();
        System.setErr(new PrintStream(logged, true));
        int bytes = Integer.parseInt(args[4]), into = Integer.parseInt(args[5]);
        AtomicInteger rebalances = new AtomicInteger(), failures = new AtomicInteger();
        StreamsBuilder builder = new StreamsBuilder();
        builder.<byte[], byte[]>stream(args[1] + "-in").flatMapValues(value -> {
            List<byte[]> made = new ArrayList<>();
            long number = Long.parseLong(new String(value)) * into;
            for (int n = 0; n < into; n++) {
                byte[] record = new byte[bytes];
                Arrays.fill(record, (byte) 'x');
                byte[] head = String.format("%06d %012d ", 0, number + n).getBytes();
                System.arraycopy(head, 0, record, 0, head.length);
                made.add(record);
            }
            return made;
        }).to(args[1]);
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.CLIENT_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("max.poll.records"), 1000 / into);
        settings.put(StreamsConfig.producerPrefix("buffer.memory"), Long.parseLong(args[6]) << 20);
        for (int one = 0; one < Integer.parseInt(args[2]); one++) {
            settings.put(StreamsConfig.STATE_DIR_CONFIG, System.getProperty("java.io.tmpdir") + "/" + args[1] + one);
            KafkaStreams instance = new KafkaStreams(builder.build(), settings);
            instance.setUncaughtExceptionHandler(error -> {
                failures.incrementAndGet();
                return StreamThreadExceptionResponse.REPLACE_THREAD;
            });
            instance.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.REBALANCING && before == KafkaStreams.State.RUNNING) {
                    rebalances.incrementAndGet();
                }
            });
            instance.start();
        }
        Thread.sleep((long) (Double.parseDouble(args[3]) * 1000));
        Map<String, Long> lines = logged.toString().lines()
                .filter(line -> line.matches(".*\\] (WARN|ERROR) .*"))
                .map(line -> line.replaceAll("[\\\\\"]", "'").replaceFirst(".*?\\] ", "").replaceAll("[0-9]+", "N"))
                .collect(Collectors.groupingBy(
                        line -> line.substring(0, Math.min(line.length(), 200)), Collectors.counting()));
        String errors = lines.entrySet().stream().map(one -> "\"" + one.getKey() + "\": " + one.getValue())
                .collect(Collectors.joining(", "));
        System.out.printf("{\"rebalances\": %d, \"failures\": %d, \"errors\": {%s}}%n",
                rebalances.get(), failures.get(), errors);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
