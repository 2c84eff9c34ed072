"""A greedy producer on aiokafka: sends as fast as the library can, and knows nothing of throttle times."""

from __future__ import annotations

import asyncio

import aiokafka

from tests.lab.demo.clients.reporter import Spec, Tally, payload, ready, report


async def produce(spec: Spec) -> None:
    """Produce until stopped."""
    # One request at a time to a broker: with batches of 16 KB, as they are, a busy machine would be the limit.
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=spec.bootstrap, client_id=spec.client_id, max_batch_size=64 * 1024
    )
    await producer.start()
    await producer.partitions_for(spec.topic)
    tally = Tally()
    ready(aiokafka.__version__)
    report(tally)
    value = payload()

    def answered(future: asyncio.Future[object]) -> None:
        problem = future.exception()
        if problem is None:
            tally.add(len(value))
        else:
            tally.fail(problem)

    while True:
        (await producer.send(spec.topic, value)).add_done_callback(answered)  # waits while the batch is full


def main() -> None:
    """Run the producer."""
    asyncio.run(produce(Spec.from_argument()))


if __name__ == "__main__":
    main()
