// A program for @platformatic/kafka: reads one question in JSON on standard input and prints the answer in JSON.
// Run by tests.support.toolchains.
'use strict'

const fs = require('fs')

// zstd is not among them: Node has it from 22.15 on.
const CODECS = ['none', 'gzip', 'snappy', 'lz4']
const asked = JSON.parse(fs.readFileSync(0, 'utf8'))
const common = { clientId: 'platformatic', bootstrapBrokers: [asked.bootstrap] }

async function produce({ Producer, stringSerializers }, codec) {
  const producer = new Producer({ ...common, serializers: stringSerializers, idempotent: true })
  const messages = Array.from({ length: asked.count }, (_, i) => ({
    topic: asked.topic,
    key: `${i}`,
    value: `${codec}:${i}`,
    headers: { codec },
  }))
  await producer.send({ messages, acks: -1, compression: codec })
  await producer.close()
}

async function consume({ Consumer, MessagesStreamModes, stringDeserializers }) {
  const consumer = new Consumer({ ...common, groupId: asked.topic, deserializers: stringDeserializers })
  const mode = MessagesStreamModes.EARLIEST
  const stream = await consumer.consume({ topics: [asked.topic], mode, autocommit: true, maxWaitTime: 100 })
  const values = []
  for await (const message of stream) {
    if (message.headers.get('codec') !== message.value.split(':')[0]) throw new Error(`headers of ${message.offset}`)
    if (values.push(message.value) === asked.count * CODECS.length) break
  }
  await consumer.close(true)
  return values
}

async function main() {
  const client = await import('@platformatic/kafka')
  const admin = new client.Admin(common)
  await admin.createTopics({ topics: [asked.topic], partitions: asked.partitions, replicas: 1 })
  for (const codec of CODECS) await produce(client, codec)
  const values = await consume(client)
  const groups = await admin.listGroups()
  await admin.deleteTopics({ topics: [asked.topic] })
  await admin.close()
  console.log(JSON.stringify({ values, groups: [...groups.keys()] }))
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
