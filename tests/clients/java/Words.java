import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Instances of a Kafka Streams application that counts words, with group.protocol=streams and exactly once.
 *
 * Words: bootstrap=, group=, input=, output=, directory=, instances=. The counts go through a repartition topic and a
 * changelog topic. Lines of standard input: "tasks" answers with one line "tasks instance active/standby ..." for each
 * instance that runs, "stop instance" closes one, the end of input all.
 */
public class Words {
    static final Map<Integer, KafkaStreams> running = new HashMap<>();

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String word : words) options.put(word.split("=", 2)[0], word.split("=", 2)[1]);
        for (int number = 0; number < Integer.parseInt(options.get("instances")); number++) {
            KafkaStreams streams = instance(options, number);
            running.put(number, streams);
            streams.start();
        }
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] parts = line.split(" ");
            if (parts[0].equals("tasks")) tell();
            if (parts[0].equals("stop")) running.remove(Integer.parseInt(parts[1])).close();
        }
        for (KafkaStreams streams : running.values()) streams.close();
    }

    static KafkaStreams instance(Map<String, String> options, int number) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("application.id", options.get("group"));
        settings.put("client.id", options.get("group") + "-" + number);
        settings.put("application.server", "localhost:" + (1000 + number));
        settings.put("group.protocol", "streams");
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "100");
        settings.put("state.dir", options.get("directory") + "/" + number);
        settings.put("auto.offset.reset", "earliest");
        settings.put("reconnect.backoff.max.ms", "200");
        StreamsBuilder builder = new StreamsBuilder();
        var text = Serdes.String();
        builder.stream(options.get("input"), org.apache.kafka.streams.kstream.Consumed.with(text, text))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", text, text))
            .count(Materialized.<String, Long, org.apache.kafka.streams.state.KeyValueStore<
                org.apache.kafka.common.utils.Bytes, byte[]>>as("counts").withKeySerde(text).withValueSerde(Serdes.Long()))
            .toStream().mapValues(String::valueOf)
            .to(options.get("output"), Produced.with(text, text));
        return new KafkaStreams(builder.build(settings), settings);
    }

    static void tell() {
        for (int number : new TreeSet<>(running.keySet())) {
            KafkaStreams streams = running.get(number);
            List<String> tasks = new ArrayList<>();
            for (ThreadMetadata thread : streams.metadataForLocalThreads()) {
                thread.activeTasks().forEach(task -> tasks.add("active:" + task.taskId()));
                thread.standbyTasks().forEach(task -> tasks.add("standby:" + task.taskId()));
            }
            tasks.sort(null);
            System.out.println("tasks " + number + " " + streams.state() + " " + String.join(",", tasks));
        }
        System.out.println("told");
        System.out.flush();
    }
}
