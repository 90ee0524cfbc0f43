import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.FileWriter;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.common.utils.Bytes;

/**
 * The queries on Kafka Streams: windows with a grace period, suppressed until they close.
 *
 * <p>Called as the programs in Python are. A step is over when all of its rows have passed through, and the results that
 * this brings out have come.
 */
public final class OnStreams {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration LENGTH = Duration.ofMinutes(10);
    private static final Duration SLIDE = Duration.ofMinutes(5);
    private static final Duration GAP = Duration.ofMinutes(10);
    private static final long PATIENCE = 300_000;

    private OnStreams() {}

    /** Bids, their volume, the highest, and how many auctions there were. */
    static final class Figures implements Serde<long[]>, Serializer<long[]>, Deserializer<long[]> {
        @Override
        public byte[] serialize(String topic, long[] figures) {
            if (figures == null) {
                return null;
            }
            java.nio.ByteBuffer buffer = java.nio.ByteBuffer.allocate(32);
            for (long each : figures) {
                buffer.putLong(each);
            }
            return buffer.array();
        }

        @Override
        public long[] deserialize(String topic, byte[] bytes) {
            if (bytes == null) {
                return null;
            }
            java.nio.ByteBuffer buffer = java.nio.ByteBuffer.wrap(bytes);
            return new long[] {buffer.getLong(), buffer.getLong(), buffer.getLong(), buffer.getLong()};
        }

        @Override
        public void configure(Map<String, ?> configs, boolean isKey) {}

        @Override
        public void close() {}

        @Override
        public Serializer<long[]> serializer() {
            return this;
        }

        @Override
        public Deserializer<long[]> deserializer() {
            return this;
        }
    }

    private static long[] nothing() {
        return new long[] {0, 0, 0, 0};
    }

    private static JsonNode parsed(String text) {
        try {
            return JSON.readTree(text);
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static final Aggregator<String, String, long[]> COUNT =
            (key, text, before) -> {
                JsonNode row = parsed(text);
                if (row.get("kind").asText().equals("auction")) {
                    return new long[] {before[0], before[1], before[2], before[3] + 1};
                }
                long price = row.get("price").asLong();
                return new long[] {before[0] + 1, before[1] + price, Math.max(before[2], price), before[3]};
            };

    private static long[] merged(long[] one, long[] other) {
        return new long[] {one[0] + other[0], one[1] + other[1], Math.max(one[2], other[2]), one[3] + other[3]};
    }

    private static String entity(String query, JsonNode row) {
        if (query.equals("tumbling")) {
            return "0";
        }
        return row.get(query.equals("session") ? "person" : "auction").asText();
    }

    private static void add(KStream<String, String> events, String query, Duration grace, String results) {
        KGroupedStream<String, String> grouped =
                events.filter(
                                (key, text) -> {
                                    String kind = parsed(text).get("kind").asText();
                                    return kind.equals("bid") || (query.equals("join") && kind.equals("auction"));
                                })
                        .groupBy(
                                (key, text) -> {
                                    JsonNode row = parsed(text);
                                    return row.get("tenant").asText() + ":" + entity(query, row);
                                },
                                Grouped.<String, String>as(query).withKeySerde(Serdes.String()).withValueSerde(Serdes.String()));
        KTable<Windowed<String>, long[]> counted;
        if (query.equals("session")) {
            counted =
                    grouped.windowedBy(SessionWindows.ofInactivityGapAndGrace(GAP, grace))
                            .aggregate(
                                    OnStreams::nothing,
                                    COUNT,
                                    (key, one, other) -> merged(one, other),
                                    Materialized.<String, long[], SessionStore<Bytes, byte[]>>with(
                                            Serdes.String(), new Figures()));
        } else {
            TimeWindows windows = TimeWindows.ofSizeAndGrace(LENGTH, grace);
            if (query.equals("sliding")) {
                windows = windows.advanceBy(SLIDE);
            }
            counted =
                    grouped.windowedBy(windows)
                            .aggregate(
                                    OnStreams::nothing,
                                    COUNT,
                                    Materialized.<String, long[], WindowStore<Bytes, byte[]>>with(
                                            Serdes.String(), new Figures()));
        }
        counted.suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
                .toStream()
                .filter((key, figures) -> figures != null && figures[0] > 0)
                .filter((key, figures) -> !query.equals("join") || figures[3] > 0)
                .map((key, figures) -> KeyValue.pair("result", line(query, key, figures)))
                .to(results, Produced.with(Serdes.String(), Serdes.String()));
    }

    private static String line(String query, Windowed<String> key, long[] figures) {
        String[] parts = key.key().split(":");
        long gap = query.equals("session") ? GAP.toMillis() : 0;
        return JSON.createObjectNode()
                .put("query", query)
                .put("tenant", parts[0])
                .put("entity", Long.parseLong(parts[1]))
                .put("begin", key.window().start())
                .put("end", key.window().end() + gap)
                .put("bids", figures[0])
                .put("volume", figures[1])
                .put("highest", figures[2])
                .toString();
    }

    private static Properties properties(String servers) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        properties.put("group.id", "reader");
        properties.put("auto.offset.reset", "earliest");
        properties.put("linger.ms", "0");
        return properties;
    }

    private static KafkaStreams begin(JsonNode options, File directory) {
        StreamsBuilder builder = new StreamsBuilder();
        String results = options.get("results").asText();
        KStream<String, String> events =
                builder.stream(options.get("events").asText(), Consumed.with(Serdes.String(), Serdes.String()));
        Duration grace = Duration.ofMinutes(options.get("delay").asInt());
        for (JsonNode query : options.get("queries")) {
            add(events, query.asText(), grace, results);
        }
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "queries");
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, options.get("servers").asText());
        properties.put(StreamsConfig.STATE_DIR_CONFIG, directory.getPath());
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "50");
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        properties.put(StreamsConfig.producerPrefix("linger.ms"), "0");
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "1");
        return new KafkaStreams(builder.build(), properties);
    }

    /** How many rows the application has committed, in all of its topics that are not results. */
    private static boolean settled(org.apache.kafka.clients.admin.Admin admin) throws Exception {
        Map<org.apache.kafka.common.TopicPartition, org.apache.kafka.clients.consumer.OffsetAndMetadata> committed =
                admin.listConsumerGroupOffsets("queries").partitionsToOffsetAndMetadata().get();
        Map<org.apache.kafka.common.TopicPartition, org.apache.kafka.clients.admin.OffsetSpec> asked =
                new java.util.HashMap<>();
        for (String topic : admin.listTopics().names().get()) {
            if (topic.endsWith("-repartition") || topic.startsWith("events")) {
                int partitions =
                        admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
                for (int part = 0; part < partitions; part++) {
                    asked.put(
                            new org.apache.kafka.common.TopicPartition(topic, part),
                            org.apache.kafka.clients.admin.OffsetSpec.latest());
                }
            }
        }
        for (var end : admin.listOffsets(asked).all().get().entrySet()) {
            var done = committed.get(end.getKey());
            if (end.getValue().offset() > 0 && (done == null || done.offset() < end.getValue().offset())) {
                return false;
            }
        }
        return true;
    }

    private static int read(KafkaConsumer<String, String> consumer, int step, long millis, PrintWriter out) {
        int count = 0;
        long until = System.currentTimeMillis() + millis;
        while (System.currentTimeMillis() < until) {
            for (var record : consumer.poll(Duration.ofMillis(50))) {
                out.println(record.value().replaceFirst("}$", ",\"step\":" + step + "}"));
                count++;
            }
        }
        out.flush();
        return count;
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode workload = JSON.readTree(new File(arguments[0]));
        JsonNode options = JSON.readTree(arguments[2]);
        String servers = options.get("servers").asText();
        String events = options.get("events").asText();
        File directory = Files.createTempDirectory(new File(arguments[1]).getAbsoluteFile().getParentFile().toPath(), "state").toFile();
        KafkaStreams streams = begin(options, directory);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties(servers));
                KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties(servers));
                var admin = org.apache.kafka.clients.admin.Admin.create(properties(servers));
                PrintWriter out = new PrintWriter(new FileWriter(arguments[1]))) {
            consumer.subscribe(List.of(options.get("results").asText()));
            streams.start();
            for (JsonNode step : workload.get("steps")) {
                int number = step.get("number").asInt();
                for (JsonNode row : step.get("rows")) {
                    producer.send(
                            new ProducerRecord<>(
                                    events, row.get("part").asInt(), row.get("at").asLong(), null, row.toString()));
                }
                producer.flush();
                long until = System.currentTimeMillis() + PATIENCE;
                int quiet = 0;
                while (quiet < 2) {
                    int came = read(consumer, number, 150, out);
                    quiet = came == 0 && settled(admin) ? quiet + 1 : 0;
                    if (System.currentTimeMillis() > until) {
                        throw new IllegalStateException("the rows of step " + number + " do not pass: " + streams.state());
                    }
                }
                System.out.println("step " + (number + 1));
                System.out.flush();
            }
        }
        System.exit(0);
    }
}
