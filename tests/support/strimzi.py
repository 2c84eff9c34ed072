"""Resources of Strimzi that tests import quotas from."""

KAFKA_USERS = """
apiVersion: kafka.strimzi.io/v1
kind: KafkaUser
metadata: {name: reporting}
spec:
  authentication: {type: scram-sha-512}
  quotas: {producerByteRate: 1048576, consumerByteRate: 2097152, requestPercentage: 55, controllerMutationRate: 0.5}
---
apiVersion: v1
kind: List
items:
  - kind: KafkaUser
    metadata: {name: orders}
    spec: {authentication: {type: tls}, quotas: {producerByteRate: 5000000}}
  - kind: KafkaUser
    metadata: {name: nothing}
    spec: {authentication: {type: tls}}
  - kind: KafkaTopic
    metadata: {name: topic}
---
"""
