import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import redis.clients.jedis.Jedis;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;

/**
 * Sends what YCSB's Redis binding 0.17.0 sends, with the same client library; that binding is not in Maven Central.
 *
 * A record is a hash. The sorted set _indices holds every record's key, by a hash of the key; scans go through it.
 */
public final class RedisBinding extends DB {
  private static final String INDEX = "_indices";
  private Jedis server;

  @Override
  public void init() {
    String host = getProperties().getProperty("redis.host", "localhost");
    int port = Integer.parseInt(getProperties().getProperty("redis.port", "6379"));
    String timeoutMs = getProperties().getProperty("redis.timeout");
    server = timeoutMs == null ? new Jedis(host, port) : new Jedis(host, port, Integer.parseInt(timeoutMs));
    server.connect();
    String password = getProperties().getProperty("redis.password");
    if (password != null) {
      server.auth(password);
    }
  }

  @Override
  public void cleanup() {
    server.close();
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> found) {
    if (fields == null) {
      StringByteIterator.putAllAsByteIterators(found, server.hgetAll(key));
    } else {
      String[] names = fields.toArray(new String[0]);
      java.util.List<String> values = server.hmget(key, names);
      for (int place = 0; place < names.length; place++) {
        found.put(names[place], new StringByteIterator(values.get(place)));
      }
    }
    return found.isEmpty() ? Status.ERROR : Status.OK;
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    Status status = update(table, key, values);
    if (status.isOk()) {
      server.zadd(INDEX, key.hashCode(), key);
    }
    return status;
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    String said = server.hmset(key, StringByteIterator.getStringMap(values));
    return said.equals("OK") ? Status.OK : Status.ERROR;
  }

  @Override
  public Status delete(String table, String key) {
    // The index is left alone where the record went, as in the original.
    return server.del(key) == 0 && server.zrem(INDEX, key) == 0 ? Status.ERROR : Status.OK;
  }

  @Override
  public Status scan(String table, String from, int count, Set<String> fields,
      Vector<HashMap<String, ByteIterator>> found) {
    for (String key : server.zrangeByScore(INDEX, from.hashCode(), Double.POSITIVE_INFINITY, 0, count)) {
      HashMap<String, ByteIterator> record = new HashMap<>();
      read(table, key, fields, record);
      found.add(record);
    }
    return Status.OK;
  }
}
