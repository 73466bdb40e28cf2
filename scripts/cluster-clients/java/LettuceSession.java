import io.lettuce.core.KeyScanCursor;
import io.lettuce.core.LettuceVersion;
import io.lettuce.core.ReadFrom;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.SslOptions;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import io.lettuce.core.api.sync.RedisCommands;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A session of Lettuce against a cluster of several servers. */
final class LettuceSession extends Session {
  private LettuceSession(String[] arguments) {
    super(arguments);
  }

  private record Cluster(RedisClusterClient client, StatefulRedisClusterConnection<String, String> connection)
      implements Client {
    RedisAdvancedClusterCommands<String, String> commands() {
      return connection.sync();
    }

    @Override
    public String get(String key) {
      return commands().get(key);
    }

    @Override
    public void set(String key, String value) {
      commands().set(key, value);
    }

    @Override
    public void close() {
      connection.close();
      client.shutdown(Duration.ZERO, Duration.ofSeconds(1));
    }
  }

  @Override
  Cluster connect() {
    // Two seconds, or a command for a server that is away would wait for a minute.
    RedisURI.Builder where = RedisURI.builder().withHost(host).withPort(port).withPassword(password.toCharArray())
        .withTimeout(Duration.ofSeconds(2)).withSsl(authority != null);
    RedisClusterClient client = RedisClusterClient.create(where.build());
    ClusterClientOptions.Builder options = ClusterClientOptions.builder().topologyRefreshOptions(
        ClusterTopologyRefreshOptions.builder().enableAllAdaptiveRefreshTriggers()
            .enablePeriodicRefresh(Duration.ofSeconds(1)).build());
    if (authority != null) {
      options.sslOptions(SslOptions.builder().trustManager(authority.toFile()).build());
    }
    client.setOptions(options.build());
    return new Cluster(client, client.connect());
  }

  private void run() throws Exception {
    Cluster client = connect();
    RedisAdvancedClusterCommands<String, String> commands = client.commands();
    commands.flushall();
    setAndGet(client);
    List<Long> sizes = new ArrayList<>();
    client.connection().getPartitions()
        .forEach(node -> sizes.add(client.connection().getConnection(node.getNodeId()).sync().dbsize()));
    spread(sizes);
    check("counted by the library", commands.dbsize() == KEYS);
    List<String> found = new ArrayList<>();
    ScanArgs some = ScanArgs.Builder.matches("key:*").limit(20);
    KeyScanCursor<String> cursor = commands.scan(some);
    found.addAll(cursor.getKeys());
    while (!cursor.isFinished()) {
      cursor = commands.scan(cursor, some);
      found.addAll(cursor.getKeys());
    }
    scanned(found);
    var counts = new ArrayList<io.lettuce.core.RedisFuture<Long>>();
    for (int number = 0; number < 200; number++) {
      counts.add(client.connection().async().incr("counter:" + number));
    }
    for (var count : counts) {
      if (count.get() != 1) {
        fail("a pipeline over all servers");
      }
    }
    check("a pipeline over all servers", true);
    check("keys of all slots", commands.mget(keys.toArray(new String[0])).stream()
        .allMatch(pair -> pair.getValue().equals(valueOf(pair.getKey()))));
    commands.mset(Map.of("{tag}a", "1", "{tag}b", "2"));
    String owner = client.connection().getPartitions().getPartitionBySlot(SlotHash.getSlot("tag")).getNodeId();
    RedisCommands<String, String> server = client.connection().getConnection(owner).sync();
    server.multi();
    server.set("{tag}a", "5");
    server.incr("{tag}a");
    TransactionResult done = server.exec();
    check("a transaction", done.get(0).equals("OK") && done.get(1).equals(6L));
    check("two slots", refusal(() -> commands.sinter("a", "b")).contains("CROSSSLOT"));
    client.connection().setReadFrom(ReadFrom.REPLICA_PREFERRED);
    untilRead(client, keys, "reads from replicas, of which there are none");
    client.connection().setReadFrom(ReadFrom.LOWEST_LATENCY);
    untilRead(client, keys, "by latency");
    client.connection().setReadFrom(ReadFrom.UPSTREAM);
    faults(client);
  }

  public static void main(String[] arguments) throws Exception {
    System.out.println("version " + LettuceVersion.getVersion());
    new LettuceSession(arguments).run();
  }
}
