import java.lang.management.ManagementFactory;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import org.apache.storm.daemon.Acker;
import org.apache.storm.generated.GlobalStreamId;
import org.apache.storm.task.GeneralTopologyContext;
import org.apache.storm.task.IOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.MessageId;
import org.apache.storm.tuple.Tuple;

/**
 * Storm's acker in this process: so many tuple trees are pending, and one after the other, in random order, ends and is
 * replaced. Each of these is two updates. Prints the updates of a second of processor time, a line for each run.
 */
public final class StormAcker {
    private static final int UPDATES = 4_000_000; // of a run, at least
    private static long ended = 0;

    public static void main(String[] given) {
        int pending = Integer.parseInt(given[0]);
        int runs = Integer.parseInt(given[1]);
        Acker acker = new Acker();
        acker.prepare(Map.of(), null, new OutputCollector(new Counting()));
        SplittableRandom random = new SplittableRandom(1);
        Long[] roots = new Long[pending];
        Long[] values = new Long[pending];
        for (int place = 0; place < pending; place++) {
            begin(acker, random, roots, values, place);
        }
        for (int run = -2; run < runs; run++) { // the first two are for the JVM's compiler
            int passes = Math.max(1, UPDATES / 2 / pending);
            long start = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
            for (int turn = 0; turn < passes * pending; turn++) {
                int place = random.nextInt(pending);
                acker.execute(new Update(Acker.ACKER_ACK_STREAM_ID, roots[place], values[place]));
                begin(acker, random, roots, values, place);
            }
            long spent = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - start;
            if (run >= 0) {
                System.out.println(2e9 * passes * pending / spent);
            }
        }
        if (ended != (runs + 2L) * Math.max(1, UPDATES / 2 / pending) * pending) {
            throw new IllegalStateException(ended + " trees have ended");
        }
    }

    private static void begin(Acker acker, SplittableRandom random, Long[] roots, Long[] values, int place) {
        roots[place] = random.nextLong();
        values[place] = random.nextLong();
        acker.execute(new Update(Acker.ACKER_INIT_STREAM_ID, roots[place], values[place]));
    }

    private static final class Counting implements IOutputCollector {
        @Override
        public List<Integer> emit(String stream, Collection<Tuple> anchors, List<Object> tuple) {
            throw new UnsupportedOperationException();
        }

        @Override
        public void emitDirect(int task, String stream, Collection<Tuple> anchors, List<Object> tuple) {
            ended++;
        }

        @Override
        public void ack(Tuple input) {}

        @Override
        public void fail(Tuple input) {}

        @Override
        public void resetTimeout(Tuple input) {}

        @Override
        public void flush() {}

        @Override
        public void reportError(Throwable error) {
            throw new IllegalStateException(error);
        }
    }

    /** What the acker reads of a tuple. */
    private record Update(String stream, Long root, Long value) implements Tuple {
        private static final Integer SPOUT = 1;

        @Override
        public String getSourceStreamId() {
            return stream;
        }

        @Override
        public String getSourceComponent() {
            return "spout";
        }

        @Override
        public int getSourceTask() {
            return SPOUT;
        }

        @Override
        public Object getValue(int place) {
            return place == 0 ? root : place == 1 ? value : SPOUT;
        }

        @Override
        public Long getLong(int place) {
            return place == 0 ? root : value;
        }

        @Override
        public Integer getInteger(int place) {
            return SPOUT;
        }

        @Override
        public int size() {
            return 3;
        }

        @Override
        public GlobalStreamId getSourceGlobalStreamId() {
            throw new UnsupportedOperationException();
        }

        @Override
        public MessageId getMessageId() {
            throw new UnsupportedOperationException();
        }

        @Override
        public GeneralTopologyContext getContext() {
            throw new UnsupportedOperationException();
        }

        @Override
        public boolean contains(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Fields getFields() {
            throw new UnsupportedOperationException();
        }

        @Override
        public int fieldIndex(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public List<Object> select(Fields selector) {
            throw new UnsupportedOperationException();
        }

        @Override
        public List<Object> getValues() {
            throw new UnsupportedOperationException();
        }

        @Override
        public String getString(int place) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Boolean getBoolean(int place) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Short getShort(int place) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Byte getByte(int place) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Double getDouble(int place) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Float getFloat(int place) {
            throw new UnsupportedOperationException();
        }

        @Override
        public byte[] getBinary(int place) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Object getValueByField(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public String getStringByField(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Integer getIntegerByField(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Long getLongByField(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Boolean getBooleanByField(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Short getShortByField(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Byte getByteByField(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Double getDoubleByField(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Float getFloatByField(String field) {
            throw new UnsupportedOperationException();
        }

        @Override
        public byte[] getBinaryByField(String field) {
            throw new UnsupportedOperationException();
        }
    }
}
