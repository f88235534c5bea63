// Three delayed messages with amqp091-go: go run . amqp://guest:guest@127.0.0.1:5672/%2F
package main

import (
	"context"
	"log"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	later := map[string]amqp.Table{
		"number": {"x-delay": int64(2000)}, // not int: this client cuts it to 32 bits
		"text":   {"x-delay": "2s"},
		"moment": {"x-deliver-at": time.Now().UnixMilli() + 2000},
	}
	connection := must(amqp.Dial(os.Args[1]))
	defer connection.Close()
	channel := must(connection.Channel())
	check(channel.Confirm(false))
	for body, headers := range later {
		confirm := must(channel.PublishWithDeferredConfirm("orders.delay", "order.timeout", true, false, amqp.Publishing{
			Headers: headers, DeliveryMode: amqp.Persistent, Body: []byte(body),
		}))
		if !must(confirm.WaitContext(context.Background())) {
			log.Fatalf("RabbitMQ refused %s", body)
		}
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
