import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;

/**
 * Kafka's own admin client with its default options: topics are created, given more partitions and deleted, several in
 * each call. Arguments: bootstrap address, prefix of the names, topics, partitions of each. One line per step: what,
 * milliseconds.
 */
public class AdminOverQuota {
    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[2]);
        int partitions = Integer.parseInt(args[3]);
        List<String> names =
                IntStream.range(0, count).mapToObj(n -> args[1] + "-" + n).collect(Collectors.toList());
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", args[0]);
        settings.put("client.id", "java-admin");
        try (Admin admin = Admin.create(settings)) {
            long began = System.nanoTime();
            admin.createTopics(names.stream()
                            .map(name -> new NewTopic(name, partitions, (short) 1))
                            .collect(Collectors.toList()))
                    .all()
                    .get();
            began = told("created", began);
            admin.createPartitions(names.stream()
                            .collect(Collectors.toMap(name -> name, name -> NewPartitions.increaseTo(2 * partitions))))
                    .all()
                    .get();
            began = told("extended", began);
            admin.deleteTopics(names).all().get();
            told("deleted", began);
        }
    }

    private static long told(String what, long began) {
        System.out.println(what + " " + (System.nanoTime() - began) / 1_000_000);
        return System.nanoTime();
    }
}
