import java.io.Closeable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisCommands;
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
  /** Redirects that a command may follow in a cluster. */
  private static final int REDIRECTS = 5;
  private static final int TIMEOUT_MS = 2000;
  private JedisCommands server;

  @Override
  public void init() {
    String host = getProperties().getProperty("redis.host", "localhost");
    int port = Integer.parseInt(getProperties().getProperty("redis.port", "6379"));
    String timeoutMs = getProperties().getProperty("redis.timeout");
    String password = getProperties().getProperty("redis.password");
    int timeout = timeoutMs == null ? TIMEOUT_MS : Integer.parseInt(timeoutMs);
    if (Boolean.parseBoolean(getProperties().getProperty("redis.cluster"))) {
      // The original gives no password to the servers of a cluster.
      server = new JedisCluster(Collections.singleton(new HostAndPort(host, port)), timeout, timeout, REDIRECTS, password,
          new GenericObjectPoolConfig());
      return;
    }
    Jedis alone = new Jedis(host, port, timeout);
    alone.connect();
    if (password != null) {
      alone.auth(password);
    }
    server = alone;
  }

  @Override
  public void cleanup() {
    try {
      ((Closeable) server).close();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
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
