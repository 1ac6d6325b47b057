import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Sends the records of standard input once for each codec, through any kafka-clients since 0.8.2.
 * Words: bootstrap=, topic=, codecs=none,gzip... Lines: partition key value (header name, header value)...
 */
public class Produce {
    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String word : words) options.put(word.split("=", 2)[0], word.split("=", 2)[1]);
        List<String[]> lines = new ArrayList<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) lines.add(line.split(" "));
        for (String codec : options.get("codecs").split(",")) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", options.get("bootstrap"));
            settings.put("compression.type", codec);
            settings.put("acks", "all");
            settings.put("linger.ms", "20");
            settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
            settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
            KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
            List<Future<?>> sent = new ArrayList<>();
            for (String[] line : lines) sent.add(producer.send(record(options.get("topic"), line)));
            for (Future<?> one : sent) one.get();
            producer.close();
        }
    }

    static ProducerRecord<byte[], byte[]> record(String topic, String[] line) throws Exception {
        int partition = Integer.parseInt(line[0]);
        ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(topic, partition, bytes(line[1]), bytes(line[2]));
        if (line.length == 3) return made;
        // Headers came with 0.11; older releases must not be asked for them.
        Object headers = made.getClass().getMethod("headers").invoke(made);
        Class<?> kind = Class.forName("org.apache.kafka.common.header.Headers");
        for (int at = 3; at < line.length; at += 2)
            kind.getMethod("add", String.class, byte[].class)
                .invoke(headers, new String(bytes(line[at]), "UTF-8"), bytes(line[at + 1]));
        return made;
    }

    static byte[] bytes(String word) {
        return word.equals("-") ? null : Base64.getDecoder().decode(word.substring(1));
    }
}
