import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;

/**
 * Members of a share group that acknowledge each record by what it says.
 *
 * Words: bootstrap=, group=, topic=, members=, count=, idle_ms=, mode= record_limit, limit_ms=. A record's text begins with what is
 * done to it: accept, reject, release (always), again (released once, then accepted), renew (its lock is renewed, then it
 * is accepted), hold (nothing, until its lock runs out; accepted when it comes back). It ends once so many records are
 * settled for good and nothing has come for a while. Lines: "got member partition offset deliveries",
 * "done member partition offset type" when the broker has confirmed it, "refused member partition offset type" when not.
 */
public class Share {
    static final String TIMEOUT_MS = "70000";
    static final AtomicInteger settled = new AtomicInteger();
    static final AtomicLong lastSeen = new AtomicLong(System.currentTimeMillis());

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String word : words) options.put(word.split("=", 2)[0], word.split("=", 2)[1]);
        settled.set(0);  // the program may run several times in one JVM
        lastSeen.set(System.currentTimeMillis());
        List<Thread> members = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(options.get("members")); number++) {
            int member = number;
            members.add(new Thread(() -> consume(options, member)));
        }
        for (Thread member : members) member.start();
        for (Thread member : members) member.join();
    }

    static void consume(Map<String, String> options, int member) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("group.id", options.get("group"));
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("share.acquire.mode", options.getOrDefault("mode", "batch_optimized"));
        settings.put("max.poll.records", options.getOrDefault("records", "500"));
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        int count = Integer.parseInt(options.get("count"));
        long idle = Long.parseLong(options.get("idle_ms"));
        long deadline = System.currentTimeMillis() + Long.parseLong(options.getOrDefault("limit_ms", TIMEOUT_MS));
        try (KafkaShareConsumer<byte[], String> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(options.get("topic")));
            Set<Long> renewed = new HashSet<>();  // poll() gives them again
            while (System.currentTimeMillis() < deadline) {
                if (settled.get() >= count && System.currentTimeMillis() - lastSeen.get() > idle) return;
                List<Object[]> answers = new ArrayList<>();
                List<ConsumerRecord<byte[], String>> held = new ArrayList<>();
                for (ConsumerRecord<byte[], String> record : consumer.poll(Duration.ofMillis(100))) {
                    lastSeen.set(System.currentTimeMillis());
                    boolean isRenewed = renewed.remove(record.offset());
                    int deliveries = record.deliveryCount().get();
                    if (!isRenewed) say("got", member, record, String.valueOf(deliveries));
                    AcknowledgeType type = isRenewed ? AcknowledgeType.ACCEPT : typeOf(record.value(), deliveries);
                    if (type == AcknowledgeType.RENEW) renewed.add(record.offset());
                    if (type == null) {
                        held.add(record);
                        continue;
                    }
                    consumer.acknowledge(record, type);
                    answers.add(new Object[] {record, type});
                }
                commit(consumer, member, answers);
                if (held.isEmpty()) continue;
                Thread.sleep(consumer.acquisitionLockTimeoutMs().get() + 100);
                answers.clear();
                for (ConsumerRecord<byte[], String> record : held) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);  // too late
                    answers.add(new Object[] {record, AcknowledgeType.ACCEPT});
                }
                commit(consumer, member, answers);
            }
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static AcknowledgeType typeOf(String text, int deliveries) {
        if (text.startsWith("reject")) return AcknowledgeType.REJECT;
        if (text.startsWith("release")) return AcknowledgeType.RELEASE;
        if (text.startsWith("again") && deliveries == 1) return AcknowledgeType.RELEASE;
        if (text.startsWith("renew")) return AcknowledgeType.RENEW;
        if (text.startsWith("hold") && deliveries == 1) return null;
        return AcknowledgeType.ACCEPT;
    }

    /** Nothing is confirmed of a partition with an error: its records come again. */
    static void commit(KafkaShareConsumer<byte[], String> consumer, int member, List<Object[]> answers) {
        if (answers.isEmpty()) return;
        var results = consumer.commitSync();
        for (Object[] answer : answers) {
            ConsumerRecord<byte[], String> record = cast(answer[0]);
            AcknowledgeType type = (AcknowledgeType) answer[1];
            boolean well = results.entrySet().stream().anyMatch(each -> each.getValue().isEmpty()
                && each.getKey().topic().equals(record.topic()) && each.getKey().partition() == record.partition());
            say(well ? "done" : "refused", member, record, type.toString());
            if (!well) continue;
            if (type == AcknowledgeType.ACCEPT || type == AcknowledgeType.REJECT) settled.incrementAndGet();
        }
    }

    @SuppressWarnings("unchecked")
    static ConsumerRecord<byte[], String> cast(Object record) {
        return (ConsumerRecord<byte[], String>) record;
    }

    static synchronized void say(String what, int member, ConsumerRecord<byte[], String> record, String more) {
        System.out.println(what + " " + member + " " + record.partition() + " " + record.offset() + " " + more);
        System.out.flush();
    }
}
