import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Three delayed messages: java -cp 'target/dependency/*' Later.java amqp://guest:guest@127.0.0.1:5672/%2F */
public final class Later {
    public static void main(String[] arguments) throws Exception {
        Map<String, Map<String, Object>> later = Map.of(
                "number", Map.of("x-delay", 2_000L),
                "text", Map.of("x-delay", "2s"),
                "moment", Map.of("x-deliver-at", System.currentTimeMillis() + 2_000));
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(arguments[0]);
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            for (var one : later.entrySet()) {
                var properties = new BasicProperties.Builder().headers(one.getValue()).deliveryMode(2).build();
                byte[] body = one.getKey().getBytes(StandardCharsets.UTF_8);
                channel.basicPublish("orders.delay", "order.timeout", true, properties, body);
            }
            channel.waitForConfirmsOrDie(5_000);
        }
    }
}
