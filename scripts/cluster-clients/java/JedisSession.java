import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.ConnectionPool;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.util.JedisClusterCRC16;

/** A session of Jedis against a cluster of several servers. */
final class JedisSession extends Session {
  private JedisSession(String[] arguments) {
    super(arguments);
  }

  private record Cluster(RedisClusterClient jedis) implements Client {
    @Override
    public String get(String key) {
      return jedis.get(key);
    }

    @Override
    public void set(String key, String value) {
      jedis.set(key, value);
    }

    @Override
    public void close() {
      jedis.close();
    }
  }

  @Override
  Cluster connect() {
    DefaultJedisClientConfig.Builder config =
        DefaultJedisClientConfig.builder().password(password).connectionTimeoutMillis(3000);
    if (authority != null) {
      try {
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted());
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        config.ssl(true).sslSocketFactory(context.getSocketFactory());
      } catch (java.security.GeneralSecurityException error) {
        throw new IllegalStateException(error);
      }
    }
    return new Cluster(
        RedisClusterClient.builder().nodes(Set.of(new HostAndPort(host, port))).clientConfig(config.build()).build());
  }

  private void run() throws Exception {
    Cluster client = connect();
    RedisClusterClient jedis = client.jedis();
    // The first server may be known under two names.
    List<ConnectionPool> servers = new ArrayList<>();
    Set<String> ids = new HashSet<>();
    for (ConnectionPool pool : jedis.getClusterNodes().values()) {
      try (Jedis server = new Jedis(pool.getResource())) {
        if (ids.add(server.clusterMyId())) {
          servers.add(pool);
        }
        server.flushAll();
      }
    }
    setAndGet(client);
    List<Long> sizes = new ArrayList<>();
    List<String> found = new ArrayList<>();
    for (ConnectionPool pool : servers) {
      try (Jedis server = new Jedis(pool.getResource())) {
        sizes.add(server.dbSize());
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
          ScanResult<String> some = server.scan(cursor, new ScanParams().match("key:*").count(20));
          found.addAll(some.getResult());
          cursor = some.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
      }
    }
    spread(sizes);
    scanned(found);
    try (AbstractPipeline pipeline = jedis.pipelined()) {
      List<Response<Long>> counts = new ArrayList<>();
      for (int number = 0; number < 200; number++) {
        counts.add(pipeline.incr("counter:" + number));
      }
      pipeline.sync();
      check("a pipeline over all servers", counts.stream().allMatch(count -> count.get() == 1));
    }
    jedis.mset("{tag}a", "1", "{tag}b", "2");
    check("several keys of a tag", jedis.mget("{tag}a", "{tag}b").equals(List.of("1", "2")));
    // In cluster mode the library leaves transactions to the connections of servers.
    try (Jedis server = new Jedis(jedis.getConnectionFromSlot(JedisClusterCRC16.getSlot("tag")))) {
      Transaction transaction = server.multi();
      transaction.set("{tag}a", "5");
      transaction.incr("{tag}a");
      transaction.mget("{tag}a", "{tag}b");
      check("a transaction", transaction.exec().equals(List.of("OK", 6L, List.of("6", "2"))));
    }
    check("two slots, as the library sees them", !refusal(() -> jedis.sinter("a", "b")).isEmpty());
    try (Jedis server = new Jedis(servers.get(0).getResource())) {
      check("two slots", refusal(() -> server.mget("a", "b")).contains("CROSSSLOT"));
    }
    check("a hash", jedis.hset("hash", Map.of("field", "value")) == 1 && jedis.hget("hash", "field").equals("value"));
    faults(client);
  }

  /** As its archive is named: its package says none. */
  private static String version() {
    String archive = Jedis.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    return archive.replaceAll(".*/jedis-|\\.jar$", "");
  }

  public static void main(String[] arguments) throws Exception {
    System.out.println("version " + version());
    new JedisSession(arguments).run();
  }
}
