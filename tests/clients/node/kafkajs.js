// A program for kafkajs: answers each line of standard input, JSON, by a line of JSON. It ends with its input, or when a
// question fails: then standard error says why. Run by tests.support.toolchains.
'use strict'

const fs = require('fs')
const readline = require('readline')
const { CompressionTypes, ConfigResourceTypes, Kafka, PartitionAssigners, logLevel } = require('kafkajs')

const TIMEOUT_MS = 60_000
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }

const bytes = (text) => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))
const text = (value) => (value === null || value === undefined ? null : Buffer.from(value).toString('base64'))

/** How a client connects: files in PEM form, and a login. */
function secured(security) {
  const settings = {}
  if (security?.ca) {
    const read = (path) => (path ? fs.readFileSync(path, 'utf8') : undefined)
    settings.ssl = { ca: [read(security.ca)], cert: read(security.certificate), key: read(security.key) }
  }
  if (security?.mechanism) {
    const { mechanism, user: username, password } = security
    const bearer = async () => ({ value: password })
    settings.sasl = { mechanism: mechanism.toLowerCase(), username, password, oauthBearerProvider: bearer }
  }
  return settings
}

function connect(asked, settings = {}) {
  return new Kafka({
    clientId: 'kafkajs',
    brokers: asked.bootstrap.split(','),
    logLevel: logLevel.ERROR,
    ...secured(asked.security),
    ...settings,
  })
}

/** Connects and logs in, or says why it may not. */
async function ping(asked) {
  const admin = connect(asked, { retry: { retries: 0 } }).admin()
  await admin.connect()
  await admin.disconnect()
  return {}
}

function toSend(record) {
  const headers = Object.fromEntries((record.headers ?? []).map((each) => [each.key, bytes(each.value)]))
  return { key: bytes(record.key), value: bytes(record.value), partition: record.partition, headers }
}

function received(partition, message) {
  const headers = Object.entries(message.headers ?? {}).map(([key, value]) => ({ key, value: text(value) }))
  return {
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: text(message.key),
    value: text(message.value),
    headers,
  }
}

/** Connects a producer. kafkajs gives up where the broker that it asks for a producer id closes the connection. */
async function begin(producer) {
  for (;;) {
    try {
      return await producer.connect()
    } catch (error) {
      if (error.name !== 'KafkaJSConnectionClosedError') throw error
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }
}

async function produce(asked) {
  const producer = connect(asked).producer({ idempotent: true, maxInFlightRequests: 1 })
  await begin(producer)
  await producer.send({
    topic: asked.topic,
    acks: -1,
    compression: CODECS[asked.codec],
    messages: asked.records.map(toSend),
  })
  await producer.disconnect()
  return {}
}

async function join(asked, kafka, onRecord) {
  const consumer = kafka.consumer({
    groupId: asked.group,
    heartbeatInterval: 200,
    maxWaitTimeInMs: 200,
    readUncommitted: !asked.read_committed,
    partitionAssigners: [PartitionAssigners.roundRobin],
  })
  const member = { consumer, owned: [] }
  consumer.on(consumer.events.GROUP_JOIN, (event) => {
    member.owned = event.payload.memberAssignment[asked.topic] ?? []
  })
  consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || fail(payload.error))
  await consumer.connect()
  await consumer.subscribe({ topics: [asked.topic], fromBeginning: true })
  await consumer.run({
    autoCommitThreshold: 1,
    eachMessage: async ({ partition, message }) => onRecord(received(partition, message)),
  })
  return member
}

async function until(condition) {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 20))
}

/** Counts records; one that a member did not commit before a rebalance comes twice. */
const distinct = (records) => new Set(records.map(({ partition, offset }) => `${partition} ${offset}`)).size

let readers = 0

/** kafkajs reads through groups only: one member reads all. */
async function consume(asked) {
  const records = []
  const group = `reads-${asked.topic}-${process.pid}-${++readers}`
  const member = await join({ ...asked, group }, connect(asked), (one) => records.push(one))
  await until(() => distinct(records) >= asked.count)
  await member.consumer.disconnect()
  return { records }
}

/** Two members read the topic until each owns something and together they read all; then they leave. */
async function group(asked) {
  const kafka = connect(asked)
  const records = []
  const members = await Promise.all([1, 2].map(() => join(asked, kafka, (one) => records.push(one))))
  await until(() => distinct(records) >= asked.count && members.every((member) => member.owned.length > 0))
  const owned = members.map((member) => member.owned)
  for (const member of members) await member.consumer.disconnect()
  return { records, owned }
}

async function admin(asked) {
  const admin = connect(asked).admin()
  await admin.connect()
  const topic = { topic: asked.topic, numPartitions: 3, configEntries: [{ name: 'retention.ms', value: '7000' }] }
  await admin.createTopics({ topics: [topic] })
  const again = (await admin.createTopics({ topics: [topic] })) ? '' : 'TOPIC_ALREADY_EXISTS'
  const resource = { type: ConfigResourceTypes.TOPIC, name: asked.topic, configNames: ['retention.ms'] }
  const configs = await admin.describeConfigs({ includeSynonyms: false, resources: [resource] })
  await admin.createPartitions({ topicPartitions: [{ topic: asked.topic, count: 4 }] })
  const metadata = await admin.fetchTopicMetadata({ topics: [asked.topic] })
  await admin.deleteTopics({ topics: [asked.topic] })
  await admin.disconnect()
  const retention = configs.resources[0].configEntries[0].configValue
  return { again, retention, partitions: metadata.topics[0].partitions.length }
}

/** Passes the source on in one transaction together with its offsets, then aborts a second one. */
async function transactions(asked) {
  const { records } = await consume({ ...asked, topic: asked.source })
  const settings = { transactionalId: asked.group, idempotent: true, maxInFlightRequests: 1 }
  const producer = connect(asked).producer(settings)
  await producer.connect()
  const kept = await producer.transaction()
  await kept.send({ topic: asked.topic, messages: records.map(toSend) })
  const ends = {}
  for (const one of records) ends[one.partition] = Math.max(ends[one.partition] ?? 0, one.offset + 1)
  const partitions = Object.entries(ends).map(([partition, end]) => ({ partition: Number(partition), offset: `${end}` }))
  await kept.sendOffsets({ consumerGroupId: asked.group, topics: [{ topic: asked.source, partitions }] })
  await kept.commit()
  const dropped = await producer.transaction()
  await dropped.send({ topic: asked.topic, messages: [{ partition: 0, value: 'dropped' }] })
  await dropped.abort()
  await producer.disconnect()
  return { committed: true }
}

const modes = { produce, consume, group, admin, transactions, ping }

function fail(error) {
  console.error(error)
  process.exit(1)
}

async function serve() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line)
    const limit = setTimeout(() => fail(`took more than ${TIMEOUT_MS} ms`), TIMEOUT_MS)
    const answer = await modes[asked.mode](asked)
    clearTimeout(limit)
    process.stdout.write(`${JSON.stringify(answer)}\n`)
  }
  process.exit(0)
}

serve().catch(fail)
