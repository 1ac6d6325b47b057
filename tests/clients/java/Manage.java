import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Creates, describes and deletes a topic through any kafka-clients since 0.11. Words: bootstrap=, topic=.
 * Fails with what differs.
 */
public class Manage {
    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0].split("=", 2)[1]);
        String topic = words[1].split("=", 2)[1];
        AdminClient admin = AdminClient.create(settings);
        NewTopic made = new NewTopic(topic, 3, (short) 1).configs(Collections.singletonMap("retention.ms", "7000"));
        admin.createTopics(Collections.singleton(made)).all().get();
        check(admin.listTopics().names().get().contains(topic), "listed");
        int partitions = admin.describeTopics(Collections.singleton(topic)).all().get().get(topic).partitions().size();
        check(partitions == 3, partitions + " partitions");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config config = admin.describeConfigs(Collections.singleton(resource)).all().get().get(resource);
        check(config.get("retention.ms").value().equals("7000"), "retention " + config.get("retention.ms"));
        admin.deleteTopics(Collections.singleton(topic)).all().get();
        check(!admin.listTopics().names().get().contains(topic), "deleted");
        admin.close();
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new IllegalStateException(what);
    }
}
