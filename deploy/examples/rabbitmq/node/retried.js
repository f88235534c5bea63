// A consumer whose failed messages come back later: node retried.js amqp://guest:guest@127.0.0.1:5672/%2F
import amqp from "amqplib";

const returned = { deadLetterExchange: "postdate.retry", deadLetterRoutingKey: "work_retry" };

function work(body, attempt) {
  console.log(`${body}: attempt ${attempt} at ${Date.now() / 1000}`);
  if (attempt < 2) throw new Error("no connection");
}

const connection = await amqp.connect(process.argv[2]);
const channel = await connection.createChannel();
await channel.assertQueue("orders.work", { durable: true, ...returned });
await channel.bindQueue("orders.work", "orders", "order.work");
await channel.consume("orders.work", (message) => {
  try {
    work(message.content, message.properties.headers?.["x-retry-attempt"] ?? 0);
    channel.ack(message);
  } catch {
    channel.nack(message, false, false);
  }
});
