import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/**
 * A source connector whose tasks have as many records as Connect takes, each for a partition of its own
 * (benchmarks/suites/goodput_apps.py). Settings: topic, bytes of a record.
 */
public class Numbers extends SourceConnector {
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> given) {
        settings = given;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return Source.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int count) {
        List<Map<String, String>> tasks = new ArrayList<>();
        for (int one = 0; one < count; one++) {
            Map<String, String> own = new HashMap<>(settings);
            own.put("one", String.valueOf(one));
            tasks.add(own);
        }
        return tasks;
    }

    @Override
    public void stop() {
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    @Override
    public String version() {
        return "1";
    }

    /** One task. */
    public static class Source extends SourceTask {
        private String topic;
        private int one;
        private int bytes;
        private long number = 0;

        @Override
        public void start(Map<String, String> settings) {
            topic = settings.get("topic");
            one = Integer.parseInt(settings.get("one"));
            bytes = Integer.parseInt(settings.get("bytes"));
        }

        @Override
        public List<SourceRecord> poll() {
            byte[] value = new byte[bytes];
            Arrays.fill(value, (byte) 'x');
            byte[] head = String.format("%06d %012d ", one, number).getBytes();
            System.arraycopy(head, 0, value, 0, head.length);
            return Collections.singletonList(new SourceRecord(Map.of("one", one), Map.of("number", number++), topic, one,
                    null, null, Schema.BYTES_SCHEMA, value));
        }

        @Override
        public void stop() {
        }

        @Override
        public String version() {
            return "1";
        }
    }
}
