// Command sarama is an honest producer on sarama.
package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/IBM/sarama"

	"kquota/tests/go/honest/paced"
)

func main() {
	work := paced.Read()
	config := sarama.NewConfig()
	config.ClientID = work.ClientID
	config.Producer.Return.Successes = true
	producer, err := sarama.NewAsyncProducer(work.Bootstrap, config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var result paced.Result
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
	work.Offer(&result, func(number int, value []byte) {
		producer.Input() <- &sarama.ProducerMessage{
			Topic: work.Topic, Value: sarama.ByteEncoder(value), Metadata: number,
		}
	})
	producer.AsyncClose()
	readers.Wait()
	result.Write()
}
