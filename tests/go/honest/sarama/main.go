// Command sarama is an honest producer, or member of a group, on sarama.
package main

import (
	"sync"

	"github.com/IBM/sarama"

	"kquota/tests/go/honest/paced"
)

func main() { paced.Main(produce, read) }

func produce(work paced.Work, result *paced.Result) {
	config := sarama.NewConfig()
	config.ClientID = work.ClientID
	config.Producer.Return.Successes = true
	producer := paced.Must(sarama.NewAsyncProducer(work.Bootstrap, config))
	var readers sync.WaitGroup
	readers.Add(2)
	go func() {
		defer readers.Done()
		for message := range producer.Successes() {
			result.Acknowledged(message.Metadata.(int))
		}
	}()
	go func() {
		defer readers.Done()
		for failure := range producer.Errors() {
			result.Failed(failure)
		}
	}()
	work.Offer(result, func(number int, value []byte) {
		producer.Input() <- &sarama.ProducerMessage{
			Topic: work.Topic, Value: sarama.ByteEncoder(value), Metadata: number,
		}
	})
	producer.AsyncClose()
	readers.Wait()
}

type handler struct{ result *paced.Result }

func (h handler) Setup(sarama.ConsumerGroupSession) error {
	h.result.Joined++
	return nil
}

func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		h.result.Received(message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func read(work paced.Work, result *paced.Result) {
	config := sarama.NewConfig()
	config.ClientID = work.ClientID
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Return.Errors = true
	group := paced.Must(sarama.NewConsumerGroup(work.Bootstrap, work.Group(), config))
	go func() {
		for err := range group.Errors() {
			result.Failed(err)
		}
	}()
	ctx, cancel := work.Over()
	defer cancel()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{work.Topic}, handler{result}); err != nil && ctx.Err() == nil {
			result.Failed(err)
		}
	}
	group.Close()
}
