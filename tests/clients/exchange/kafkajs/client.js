// Passes values on through kafkajs. Its argument is a JSON object, values are base64 lines.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')
const { readFileSync } = require('fs')

const asked = JSON.parse(process.argv[2])
const kafka = new Kafka({ brokers: [asked.bootstrap], logLevel: logLevel.ERROR })

async function produce() {
  const values = readFileSync(0, 'latin1').split('\n').slice(0, -1).map((line) => Buffer.from(line, 'base64'))
  const producer = kafka.producer({ idempotent: asked.idempotent === 1, maxInFlightRequests: 1 })
  await producer.connect()
  await producer.send({
    topic: asked.topic,
    compression: asked.codec === 'gzip' ? CompressionTypes.GZIP : CompressionTypes.None,
    messages: values.map((value) => ({ partition: 0, value })),
  })
  await producer.disconnect()
}

// kafkajs reads only as a member of a group.
async function consume() {
  const consumer = kafka.consumer({ groupId: `exchange-${asked.topic}` })
  await consumer.connect()
  await consumer.subscribe({ topic: asked.topic, fromBeginning: true })
  const lines = []
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`nothing more after ${lines.length} messages`)), 40000).unref()
    consumer.run({
      eachMessage: async ({ message }) => {
        lines.push(message.value.toString('base64'))
        if (lines.length === asked.count) resolve()
      },
    })
  })
  process.stdout.write(lines.map((line) => line + '\n').join(''))
  await consumer.disconnect()
}

const run = asked.mode === 'produce' ? produce : consume
run().catch((error) => {
  console.error(error)
  process.exit(1)
})
