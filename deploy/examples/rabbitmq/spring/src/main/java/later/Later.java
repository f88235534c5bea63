package later;

import org.springframework.amqp.rabbit.annotation.Exchange;
import org.springframework.amqp.rabbit.annotation.Queue;
import org.springframework.amqp.rabbit.annotation.QueueBinding;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

/** Three delayed messages with Spring AMQP, and the listener that receives them: see ../../README.md. */
@SpringBootApplication
public class Later {
    public static void main(String[] arguments) {
        SpringApplication.run(Later.class, arguments);
    }

    @Bean
    CommandLineRunner publish(RabbitTemplate rabbit) {
        return arguments -> {
            rabbit.convertAndSend("orders.delay", "order.timeout", "number", message -> {
                message.getMessageProperties().setDelayLong(2_000L);
                return message;
            });
            rabbit.convertAndSend("orders.delay", "order.timeout", "text", message -> {
                message.getMessageProperties().setHeader("x-delay", "2s");
                return message;
            });
            rabbit.convertAndSend("orders.delay", "order.timeout", "moment", message -> {
                message.getMessageProperties().setHeader("x-deliver-at", System.currentTimeMillis() + 2_000);
                return message;
            });
        };
    }

    /** Unchanged: it names the exchange "orders", with no delayed = "true". */
    @RabbitListener(bindings = @QueueBinding(
            value = @Queue(name = "order-timeouts", durable = "true"),
            exchange = @Exchange(name = "orders", type = "topic"),
            key = "order.timeout"))
    void onTimeout(String body) {
        System.out.println("arrived: " + body);
    }
}
