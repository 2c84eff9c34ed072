// Command crowd runs producers that each have a partition of their own and always so many records under way, and
// writes what became of those (benchmarks/suites/goodput.py). Its one argument is the work, as JSON.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"kquota/tests/go/honest/paced"
)

type work struct {
	Library, Bootstrap, Topic            string
	Producers, UnderWay, Bytes           int
	Seconds, TimeoutSeconds, LifeSeconds float64
	PauseSeconds                         float64
	Idempotent                           bool
}

type result struct {
	mutex   sync.Mutex
	Acked   [][3]float64   `json:"acked"`
	GivenUp int            `json:"given_up"`
	Errors  map[string]int `json:"errors"`
}

// A producer sends a record of one partition, and calls back once.
type producer func(partition int32, value []byte, done func(error))

func main() {
	var w work
	if err := json.Unmarshal([]byte(os.Args[1]), &w); err != nil {
		panic(err)
	}
	made := map[string]func(work) producer{"franz-go": franz, "sarama": withSarama}[w.Library]
	seen := result{Acked: [][3]float64{}, Errors: map[string]int{}}
	begin := time.Now()
	for one := 0; one < w.Producers; one++ {
		go run(w, one, made(w), begin, &seen)
	}
	time.Sleep(time.Until(begin.Add(seconds(w.Seconds))))
	seen.mutex.Lock()
	if err := json.NewEncoder(os.Stdout).Encode(&seen); err != nil {
		panic(err)
	}
}

func run(w work, one int, send producer, begin time.Time, seen *result) {
	open := make(chan struct{}, w.UnderWay)
	for number := 0; ; number++ {
		open <- struct{}{}
		time.Sleep(time.Until(begin.Add(seconds(float64(number) * w.PauseSeconds))))
		value := bytes.Repeat([]byte("x"), w.Bytes)
		copy(value, fmt.Sprintf("%06d %012d ", one, number))
		send(int32(one), value, func(failure error) {
			seen.mutex.Lock()
			defer seen.mutex.Unlock()
			if failure == nil {
				seen.Acked = append(seen.Acked, [3]float64{time.Since(begin).Seconds(), float64(one), float64(number)})
			} else {
				seen.GivenUp++
				seen.Errors[failure.Error()]++
			}
			<-open
		})
	}
}

func franz(w work) producer {
	options := []kgo.Opt{
		kgo.SeedBrokers(w.Bootstrap),
		kgo.ClientID(w.Topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(int32(w.Bytes + 10_000)),
		kgo.ProducerLinger(0),
		kgo.ProduceRequestTimeout(seconds(w.TimeoutSeconds)),
		kgo.RecordDeliveryTimeout(seconds(w.LifeSeconds)),
	}
	if !w.Idempotent { // idempotent ones choose how many requests are under way
		options = append(options, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(w.UnderWay))
	}
	client := paced.Must(kgo.NewClient(options...))
	return func(partition int32, value []byte, done func(error)) {
		record := &kgo.Record{Topic: w.Topic, Partition: partition, Value: value}
		client.Produce(context.Background(), record, func(_ *kgo.Record, failure error) { done(failure) })
	}
}

func withSarama(w work) producer {
	config := sarama.NewConfig()
	config.ClientID = w.Topic
	config.Version = sarama.V3_0_0_0
	config.Net.MaxOpenRequests = w.UnderWay
	config.Net.ReadTimeout = seconds(w.TimeoutSeconds)
	config.Producer.Idempotent = w.Idempotent
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Timeout = seconds(w.TimeoutSeconds)
	config.Producer.MaxMessageBytes = w.Bytes + 10_000
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.MaxMessages = 1
	config.Producer.Return.Successes = true
	made := paced.Must(sarama.NewAsyncProducer([]string{w.Bootstrap}, config))
	go func() {
		for message := range made.Successes() {
			message.Metadata.(func(error))(nil)
		}
	}()
	go func() {
		for failure := range made.Errors() {
			failure.Msg.Metadata.(func(error))(failure.Err)
		}
	}()
	return func(partition int32, value []byte, done func(error)) {
		made.Input() <- &sarama.ProducerMessage{
			Topic: w.Topic, Partition: partition, Value: sarama.ByteEncoder(value), Metadata: done,
		}
	}
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }
