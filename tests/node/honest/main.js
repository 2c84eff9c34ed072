// An honest producer, or member of a group, on kafkajs: work on standard input, what became of it on standard output
// (as tests/go/honest/paced).
"use strict";

const crypto = require("node:crypto");
const fs = require("node:fs");
const { Kafka, logLevel } = require("kafkajs");

const work = JSON.parse(fs.readFileSync(0, "utf8"));
const result = { sent: 0, acked: [], errors: [], read: [], times: [], joined: 0 };
const failed = (error) => result.errors.push(String(error && error.message ? error.message : error));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const kafka = new Kafka({
  brokers: work.bootstrap,
  clientId: work.client_id,
  logLevel: logLevel.ERROR,
  logCreator: () => ({ log }) => failed(`${log.message} ${log.error || ""}`),
});

async function produce() {
  const producer = kafka.producer();
  await producer.connect();
  const under_way = new Set();
  const begin = performance.now();
  let due = 0;
  for (let now = 0; now < work.seconds; now = (performance.now() - begin) / 1000) {
    due = Math.max(due, now - 1);
    if (due > now) await sleep((due - now) * 1000);
    due += 1 / work.per_s;
    const number = result.sent++;
    const value = `${String(number).padStart(12, "0")} ${crypto.randomBytes(work.record_bytes / 2).toString("hex")}`;
    const sending = producer
      .send({ topic: work.topic, messages: [{ value: value.slice(0, work.record_bytes) }] })
      .then(() => result.acked.push(number), failed)
      .finally(() => under_way.delete(sending));
    under_way.add(sending);
  }
  await Promise.all(under_way);
  await producer.disconnect();
}

async function read() {
  const consumer = kafka.consumer({ groupId: `group-${work.topic}` });
  consumer.on(consumer.events.GROUP_JOIN, () => result.joined++);
  await consumer.connect();
  await consumer.subscribe({ topic: work.topic, fromBeginning: true });
  const eachMessage = async ({ message }) => {
    result.read.push(Number(message.value.subarray(0, 12)));
    result.times.push(Date.now() / 1000);
  };
  consumer.run({ eachMessage }).catch(failed); // it joins first, which may wait for other members' throttles
  await sleep(work.seconds * 1000);
  await Promise.race([consumer.disconnect(), sleep(10_000)]); // it waits for a fetch, which may be throttled
}

(work.reads ? read() : produce())
  .catch(failed)
  .then(() => fs.writeSync(1, JSON.stringify(result)))
  .then(() => process.exit(0));
