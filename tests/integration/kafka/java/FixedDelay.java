import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/** Gives every record a delay, for programs that can set no headers. */
public final class FixedDelay implements ProducerInterceptor<Object, Object> {
    private byte[] delay;

    @Override
    public void configure(Map<String, ?> configs) {
        delay = String.valueOf(configs.get("test.delay")).getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public ProducerRecord<Object, Object> onSend(ProducerRecord<Object, Object> record) {
        record.headers().add("x-delay", delay);
        return record;
    }

    @Override
    public void onAcknowledgement(RecordMetadata metadata, Exception exception) {}

    @Override
    public void close() {}
}
