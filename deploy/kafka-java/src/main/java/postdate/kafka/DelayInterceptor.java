package postdate.kafka;

import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.Importance;
import org.apache.kafka.common.config.ConfigDef.Type;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.header.Header;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Hands records with a delay header to postdate, by the topic that they are written to; all others go where they
 * always went. It is named in a producer's {@code interceptor.classes}; the README beside it says what can be set.
 *
 * <p>A wrong setting keeps the producer from starting. Once it has started nothing here throws: Kafka would log the
 * exception and write the record to the real topic, which would deliver it early.
 */
public final class DelayInterceptor<K, V> implements ProducerInterceptor<K, V> {
    /** Where delayed records go: a text with one "*" for the topic, or a list of topic:intake. */
    public static final String INTAKE = "postdate.intake";

    /** The headers that delay a record, cancel one, or name another topic. */
    public static final String HEADERS = "postdate.delay.headers";

    /** Whether a partition number that was given for the topic is used on the intake topic too. */
    public static final String KEEP_PARTITION = "postdate.keep.partition";

    private static final Logger LOG = LoggerFactory.getLogger(DelayInterceptor.class);

    private static final ConfigDef SETTINGS = new ConfigDef()
            .define(INTAKE, Type.LIST, "*.delay", Importance.HIGH, "Where delayed records go.")
            .define(
                    HEADERS,
                    Type.LIST,
                    "x-delay,x-deliver-at,x-delay-level,x-delay-cancel,x-delay-to",
                    Importance.MEDIUM,
                    "The headers that delay a record, cancel one, or name another topic.")
            .define(KEEP_PARTITION, Type.BOOLEAN, false, Importance.LOW, "Keep a given partition number.");

    /** What stands before and after the topic in its intake topic's name; not used where there is a mapping. */
    private String before = "";

    private String after = "";
    private Map<String, String> mapping = Map.of();
    private Set<String> names = new HashSet<>();
    private boolean keepPartition;

    /** Topics that the log has warned of. */
    private final Set<String> warned = ConcurrentHashMap.newKeySet();

    @Override
    public void configure(Map<String, ?> configs) {
        Map<String, Object> settings = SETTINGS.parse(configs);
        List<String> intake = texts(settings, INTAKE);
        // Not an immutable set: that one throws when it is asked for null.
        names = new HashSet<>(texts(settings, HEADERS));
        keepPartition = (Boolean) settings.get(KEEP_PARTITION);
        if (intake.size() == 1 && !intake.get(0).contains(":")) {
            useRule(intake.get(0));
        } else {
            mapping = mappingOf(intake);
        }
    }

    @Override
    public ProducerRecord<K, V> onSend(ProducerRecord<K, V> record) {
        String intake = isDelayed(record) ? intakeOf(record.topic()) : null;
        if (intake == null) {
            return record;
        }
        // The number was meant for another topic, which may have more partitions than this one: a send to a partition
        // that is not there blocks for max.block.ms, and fails.
        Integer partition = keepPartition ? record.partition() : null;
        return new ProducerRecord<>(
                intake, partition, record.timestamp(), record.key(), record.value(), record.headers());
    }

    @Override
    public void onAcknowledgement(RecordMetadata metadata, Exception exception) {}

    @Override
    public void close() {}

    private boolean isDelayed(ProducerRecord<K, V> record) {
        for (Header header : record.headers()) {
            if (names.contains(header.key())) {
                return true;
            }
        }
        return false;
    }

    /** The intake topic; null where there is none, as for a topic that is an intake topic itself. */
    private String intakeOf(String topic) {
        if (before.isEmpty() && after.isEmpty()) {
            return listed(topic);
        }
        return topic.startsWith(before) && topic.endsWith(after) ? null : before + topic + after;
    }

    private String listed(String topic) {
        String intake = mapping.get(topic);
        if (intake == null && !mapping.containsValue(topic) && warned.add(topic)) {
            LOG.warn("a record for topic \"{}\" has a delay header and is not delayed: add the topic to {}", topic, INTAKE);
        }
        return intake;
    }

    private void useRule(String rule) {
        int star = rule.indexOf('*');
        if (star < 0 || star != rule.lastIndexOf('*') || rule.length() == 1) {
            throw new ConfigException(INTAKE, rule, "it has one \"*\" beside other characters, like \"*.delay\"");
        }
        before = rule.substring(0, star);
        after = rule.substring(star + 1);
    }

    private static Map<String, String> mappingOf(List<String> pairs) {
        Map<String, String> mapping = new HashMap<>();
        for (String pair : pairs) {
            String[] sides = pair.split(":", -1);
            if (sides.length != 2 || sides[0].isBlank() || sides[1].isBlank() || pair.contains("*")) {
                throw new ConfigException(INTAKE, pair, "it is neither \"*.delay\" nor topic:intake, with commas between");
            }
            mapping.put(sides[0].strip(), sides[1].strip());
        }
        return mapping;
    }

    private static List<String> texts(Map<String, Object> settings, String name) {
        List<String> texts =
                ((List<?>) settings.get(name)).stream().map(String::valueOf).collect(Collectors.toList());
        if (texts.isEmpty()) {
            throw new ConfigException(name, "", "it may not be empty");
        }
        return texts;
    }
}
