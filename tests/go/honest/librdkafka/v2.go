//go:build !v1

package main

import "github.com/confluentinc/confluent-kafka-go/v2/kafka"

type (
	configMap      = kafka.ConfigMap
	message        = kafka.Message
	clientError    = kafka.Error
	topicPartition = kafka.TopicPartition
)

const (
	anyPartition = kafka.PartitionAny
	queueFull    = kafka.ErrQueueFull
)

var (
	newProducer = kafka.NewProducer
	newConsumer = kafka.NewConsumer
)
