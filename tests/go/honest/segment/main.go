// Command segment is an honest producer, or member of a group, on kafka-go.
package main

import (
	"context"
	"strconv"

	"github.com/segmentio/kafka-go"

	"kquota/tests/go/honest/paced"
)

func main() { paced.Main(produce, read) }

// By default nothing would be acknowledged, and each message waited for.
func produce(work paced.Work, result *paced.Result) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(work.Bootstrap...), Topic: work.Topic, RequiredAcks: kafka.RequireAll, Async: true,
		Transport: &kafka.Transport{ClientID: work.ClientID},
		Completion: func(messages []kafka.Message, err error) {
			for _, message := range messages {
				if err != nil {
					result.Failed(err)
				} else if number, err := strconv.Atoi(string(message.Value[:12])); err == nil {
					result.Acknowledged(number)
				}
			}
		},
	}
	work.Offer(result, func(_ int, value []byte) {
		if err := writer.WriteMessages(context.Background(), kafka.Message{Value: value}); err != nil {
			result.Failed(err)
		}
	})
	if err := writer.Close(); err != nil {
		result.Failed(err)
	}
}

func read(work paced.Work, result *paced.Result) {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: work.Bootstrap, GroupID: work.Group(), Topic: work.Topic,
		Dialer: &kafka.Dialer{ClientID: work.ClientID},
	})
	ctx, cancel := work.Over()
	defer cancel()
	for ctx.Err() == nil {
		message, err := reader.ReadMessage(ctx)
		if err == nil {
			result.Received(message.Value)
		} else if ctx.Err() == nil {
			result.Failed(err)
		}
	}
	reader.Close()
}
