// Command librdkafka is an honest producer, or member of a group, on a former release of librdkafka, whose binary the
// module confluent-kafka-go has: 1.9.2 with the build tag v1, else 2.8.0.
package main

import (
	"errors"

	"kquota/tests/go/honest/paced"
)

func main() { paced.Main(produce, read) }

func settingsOf(work paced.Work) configMap {
	return configMap{"bootstrap.servers": work.Bootstrap[0], "client.id": work.ClientID}
}

func produce(work paced.Work, result *paced.Result) {
	settings := settingsOf(work)
	settings["queue.buffering.max.kbytes"] = work.BufferBytes / 1024
	producer := paced.Must(newProducer(&settings))
	done := make(chan bool)
	go func() {
		defer close(done)
		for event := range producer.Events() {
			switch told := event.(type) {
			case *message:
				if told.TopicPartition.Error != nil {
					result.Failed(told.TopicPartition.Error)
				} else {
					result.Acknowledged(told.Opaque.(int))
				}
			case clientError:
				result.Failed(told)
			}
		}
	}()
	work.Offer(result, func(number int, value []byte) {
		to := topicPartition{Topic: &work.Topic, Partition: anyPartition}
		for {
			err := producer.Produce(&message{TopicPartition: to, Value: value, Opaque: number}, nil)
			var full clientError
			if err == nil || !errors.As(err, &full) || full.Code() != queueFull {
				if err != nil {
					result.Failed(err)
				}
				return
			}
			producer.Flush(100)
		}
	})
	producer.Flush(120_000)
	producer.Close()
	<-done
}

func read(work paced.Work, result *paced.Result) {
	settings := settingsOf(work)
	settings["group.id"], settings["auto.offset.reset"] = work.Group(), "earliest"
	consumer := paced.Must(newConsumer(&settings))
	if err := consumer.Subscribe(work.Topic, nil); err != nil {
		result.Failed(err)
	}
	ctx, cancel := work.Over()
	defer cancel()
	for ctx.Err() == nil {
		switch told := consumer.Poll(100).(type) {
		case *message:
			if told.TopicPartition.Error != nil {
				result.Failed(told.TopicPartition.Error)
			} else {
				result.Received(told.Value)
			}
		case clientError:
			result.Failed(told)
		}
	}
	consumer.Close()
}
