// Three delayed messages with amqplib: node later.js amqp://guest:guest@127.0.0.1:5672/%2F
import amqp from "amqplib";

const later = {
  number: { "x-delay": 2000 },
  text: { "x-delay": "2s" },
  moment: { "x-deliver-at": Date.now() + 2000 },
};

const connection = await amqp.connect(process.argv[2]);
const channel = await connection.createConfirmChannel();
for (const [body, headers] of Object.entries(later)) {
  channel.publish("orders.delay", "order.timeout", Buffer.from(body), { headers, persistent: true, mandatory: true });
}
await channel.waitForConfirms();
await connection.close();
