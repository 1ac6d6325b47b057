import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Rolls a group from the classic protocol to the consumer protocol and back while records flow.
 * Words: bootstrap=, topic= (of PARTITIONS partitions), assignor= of classic members. Prints the group's type after each
 * step, then how many partitions ever had two owners, and how many records were not read.
 */
public class Roll {
    static final int PARTITIONS = 4;
    static final long TIMEOUT_MS = 60000;
    static final Map<TopicPartition, String> owners = new ConcurrentHashMap<>();
    static final Set<String> seen = ConcurrentHashMap.newKeySet();
    static final AtomicInteger twice = new AtomicInteger();
    static final AtomicInteger sent = new AtomicInteger();
    static Map<String, String> options = new HashMap<>();
    static volatile boolean producing = true;

    static final class Member extends Thread implements ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        final boolean classic;
        volatile boolean stopping;

        Member(String name, boolean classic) {
            super(name);
            this.classic = classic;
            Map<String, Object> settings = new HashMap<>();
            settings.put("bootstrap.servers", options.get("bootstrap"));
            settings.put("group.id", options.get("topic"));
            settings.put("client.id", name);
            settings.put("auto.offset.reset", "earliest");
            settings.put("group.protocol", classic ? "classic" : "consumer");
            settings.put("auto.commit.interval.ms", "200");
            if (classic) {
                settings.put("heartbeat.interval.ms", "300");
                settings.put("session.timeout.ms", "10000");
                settings.put("partition.assignment.strategy", options.get("assignor"));
            }
            settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            consumer = new KafkaConsumer<>(settings);
            start();
        }

        @Override
        public void run() {
            consumer.subscribe(List.of(options.get("topic")), this);
            while (!stopping) for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) seen.add(record.value());
            consumer.close();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            for (TopicPartition partition : partitions) {
                String other = owners.put(partition, getName());
                if (other != null && !other.equals(getName())) twice.incrementAndGet();
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            for (TopicPartition partition : partitions) owners.remove(partition, getName());
        }

        void leave() throws InterruptedException {
            stopping = true;
            join(TIMEOUT_MS);
        }
    }

    public static void main(String[] words) throws Exception {
        for (String word : words) options.put(word.split("=", 2)[0], word.split("=", 2)[1]);
        forget();
        Thread producer = new Thread(Roll::produce);
        producer.start();
        List<Member> members = new ArrayList<>();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", options.get("bootstrap")))) {
            for (String name : List.of("a", "b")) members.add(new Member(name, true));
            told(admin, "classic", members);
            for (String step : List.of("c", "d", "e-classic", "f-classic")) {
                members.add(new Member(step, step.endsWith("classic")));
                told(admin, "with " + step, members);
                members.remove(0).leave();
                told(admin, "one gone", members);
            }
            producing = false;
            producer.join();
            until(() -> seen.size() >= sent.get());
            for (Member member : members) member.leave();
        } finally { // after an error the JVM goes on with other programs
            producing = false;
            for (Member member : members) member.stopping = true;
        }
        System.out.println("twice " + twice.get());
        System.out.println("missing " + (sent.get() - seen.size()));
    }

    /** Forget what an earlier run in this JVM has seen. */
    static void forget() {
        owners.clear();
        seen.clear();
        twice.set(0);
        sent.set(0);
        producing = true;
    }

    static void produce() {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            while (producing) {
                int number = sent.getAndIncrement();
                producer.send(new ProducerRecord<>(options.get("topic"), number % PARTITIONS, null, "" + number));
                Thread.sleep(5);
            }
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Wait until every partition has an owner and every member has some, then print the group's type. */
    static void told(Admin admin, String step, List<Member> members) throws Exception {
        until(() -> owners.size() == PARTITIONS && Set.copyOf(owners.values()).size() == members.size());
        Map<String, String> types = new TreeMap<>();
        for (GroupListing listing : admin.listGroups().all().get()) types.put(listing.groupId(), listing.type().get().toString());
        System.out.println(step + ": " + types.get(options.get("topic")));
    }

    interface Condition {
        boolean holds();
    }

    static void until(Condition condition) throws InterruptedException {
        long deadline = System.currentTimeMillis() + TIMEOUT_MS;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > deadline) throw new IllegalStateException("owners " + owners + ", seen " + seen.size() + " of " + sent);
            Thread.sleep(20);
        }
    }
}
