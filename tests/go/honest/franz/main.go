// Command franz is an honest producer, or member of a group, on franz-go.
package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"kquota/tests/go/honest/paced"
)

func main() { paced.Main(produce, read) }

func connected(work paced.Work, more ...kgo.Opt) *kgo.Client {
	return paced.Must(kgo.NewClient(append(more, kgo.SeedBrokers(work.Bootstrap...), kgo.ClientID(work.ClientID))...))
}

func produce(work paced.Work, result *paced.Result) {
	client := connected(work, kgo.MaxBufferedBytes(work.BufferBytes))
	ctx := context.Background()
	work.Offer(result, func(number int, value []byte) {
		record := &kgo.Record{Topic: work.Topic, Value: value}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				result.Failed(err)
			} else {
				result.Acknowledged(number)
			}
		})
	})
	if err := client.Flush(ctx); err != nil {
		result.Failed(err)
	}
	client.Close()
}

func read(work paced.Work, result *paced.Result) {
	first := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
	client := connected(work, kgo.ConsumerGroup(work.Group()), kgo.ConsumeTopics(work.Topic), first)
	ctx, cancel := work.Over()
	defer cancel()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(record *kgo.Record) { result.Received(record.Value) })
		fetches.EachError(func(_ string, _ int32, err error) {
			if ctx.Err() == nil {
				result.Failed(err)
			}
		})
	}
	client.Close()
}
