// Command franz is an honest producer, or member of a group, on franz-go.
package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"kquota/tests/go/honest/paced"
)

func main() {
	work := paced.Read()
	var result paced.Result
	options := []kgo.Opt{kgo.SeedBrokers(work.Bootstrap...), kgo.ClientID(work.ClientID)}
	if work.Reads > 0 {
		read(work, &result, options)
	} else {
		produce(work, &result, options)
	}
	result.Write()
}

func produce(work paced.Work, result *paced.Result, options []kgo.Opt) {
	client := paced.Must(kgo.NewClient(append(options, kgo.MaxBufferedBytes(work.BufferBytes))...))
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

func read(work paced.Work, result *paced.Result, options []kgo.Opt) {
	first := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
	options = append(options, kgo.ConsumerGroup(work.Group()), kgo.ConsumeTopics(work.Topic), first)
	client := paced.Must(kgo.NewClient(options...))
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
