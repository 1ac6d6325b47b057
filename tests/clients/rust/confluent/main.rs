// A program for Confluent's client in Rust: reads one question in JSON on standard input and prints the answer in JSON.
// Run by tests.support.toolchains.
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::io;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use confluent_kafka::common::serialization::{ByteArrayDeserializer, ByteArraySerializer};
use confluent_kafka::consumer::{Consumer, ConsumerConfig, ConsumerRecord, KafkaConsumer};
use confluent_kafka::producer::{KafkaProducer, Producer, ProducerConfig, ProducerRecord};
use serde::Deserialize;
use serde_json::{Value, json};

const POLL: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_secs(60);

type Bytes = Vec<u8>;
type Answer = Result<Value, Box<dyn Error>>;

#[derive(Deserialize)]
struct Record {
    partition: i32,
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
struct Question {
    bootstrap: String,
    mode: String,
    topic: String,
    #[serde(default)]
    group: String,
    #[serde(default)]
    count: usize,
    #[serde(default)]
    records: Vec<Record>,
}

/// Returns settings by the names that Kafka has for them.
fn settings(asked: &Question, more: &[(&str, &str)]) -> HashMap<String, String> {
    let all = [&[("bootstrap.servers", asked.bootstrap.as_str())], more].concat();
    all.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn bytes(text: &Option<String>) -> Result<Option<Bytes>, base64::DecodeError> {
    text.as_ref().map(|text| BASE64_STANDARD.decode(text)).transpose()
}

fn text(value: Option<&Bytes>) -> Option<String> {
    value.map(|value| BASE64_STANDARD.encode(value))
}

/// Writes all records, with idempotence, and waits until each is acknowledged.
async fn produce(asked: &Question) -> Answer {
    let config = ProducerConfig::new(&settings(asked, &[("acks", "all"), ("enable.idempotence", "true")]))?;
    let producer = KafkaProducer::<Bytes, Bytes>::new(config, ByteArraySerializer::new(), ByteArraySerializer::new())?;
    let mut sent = Vec::new();
    for one in &asked.records {
        let (key, value) = (bytes(&one.key)?, bytes(&one.value)?);
        let record = ProducerRecord::with_partition_key(asked.topic.clone(), Some(one.partition), key, value)?;
        sent.push(Producer::send(&producer, record).await?);
    }
    for one in sent {
        one.get().await?;
    }
    producer.close().await?;
    Ok(json!({}))
}

fn received(one: &ConsumerRecord<Bytes, Bytes>) -> Value {
    json!({
        "partition": one.partition(),
        "offset": one.offset(),
        "timestamp": one.timestamp(),
        "key": text(one.key()),
        "value": text(one.value()),
    })
}

/// Reads as the only member of a group, by the protocol of KIP-848, and commits what it has read.
async fn group(asked: &Question) -> Answer {
    let more = [
        ("group.id", asked.group.as_str()),
        ("group.protocol", "consumer"),
        ("auto.offset.reset", "earliest"),
        ("enable.auto.commit", "false"),
    ];
    let config = ConsumerConfig::new(&settings(asked, &more))?;
    let mut consumer =
        KafkaConsumer::<Bytes, Bytes>::new(config, ByteArrayDeserializer::new(), ByteArrayDeserializer::new())?;
    consumer.subscribe_with_topics(vec![asked.topic.clone()]).await?;
    let (mut found, mut places) = (Vec::new(), HashSet::new()); // what was not committed before a rebalance comes twice
    while places.len() < asked.count {
        for one in consumer.poll(POLL).await? {
            places.insert((one.partition(), one.offset()));
            found.push(received(&one));
        }
    }
    consumer.commit_sync().await?;
    consumer.close().await?;
    Ok(json!({ "records": found }))
}

async fn answer(asked: &Question) -> Answer {
    match asked.mode.as_str() {
        "produce" => produce(asked).await,
        "group" => group(asked).await,
        other => Err(format!("unknown mode {other}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let asked: Question = serde_json::from_reader(io::stdin())?;
    println!("{}", tokio::time::timeout(TIMEOUT, answer(&asked)).await??);
    Ok(())
}
