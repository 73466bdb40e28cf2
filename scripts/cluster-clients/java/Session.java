import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.stream.IntStream;

/** What the sessions of the clients for Java have in common. What is printed and read is told in cluster-clients.sh. */
abstract class Session {
  static final int KEYS = 300;
  private static final long PATIENCE_MS = 60_000;

  final String host;
  final int port;
  final String password;
  /** The authority's certificate; null: without TLS. */
  final Path authority;
  final List<String> keys = IntStream.range(0, KEYS).mapToObj(number -> "key:" + number).toList();
  private final BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
  private int checks;

  Session(String[] arguments) {
    int colon = arguments[0].lastIndexOf(':');
    host = arguments[0].substring(0, colon);
    port = Integer.parseInt(arguments[0].substring(colon + 1));
    password = arguments[1];
    authority = arguments.length > 2 ? Path.of(arguments[2]) : null;
  }

  interface Client extends AutoCloseable {
    String get(String key);

    void set(String key, String value);

    @Override
    void close();
  }

  abstract Client connect();

  static String valueOf(String key) {
    return "value of " + key;
  }

  static void fail(String what) {
    System.err.println("not ok: " + what);
    System.exit(1);
  }

  void check(String name, boolean isSo) {
    if (!isSo) {
      fail(name);
    }
    checks++;
    System.out.println("ok " + name);
  }

  /** What it fails with; an empty text: it does not. */
  static String refusal(Callable<?> call) {
    try {
      call.call();
      return "";
    } catch (Exception error) {
      return error.toString();
    }
  }

  private List<String> await(String what) throws IOException {
    System.out.println("await " + what);
    return List.of(input.readLine().split(" "));
  }

  /** Reads all keys. The library may first have to see that connections are gone. */
  void untilRead(Client client, List<String> wanted, String what) throws InterruptedException {
    long began = System.currentTimeMillis();
    for (String key : wanted) {
      String value = null;
      while (value == null) {
        try {
          value = client.get(key);
          if (value == null) {
            fail(what + ": there is no " + key);
          }
        } catch (RuntimeException error) {
          if (System.currentTimeMillis() - began > PATIENCE_MS) {
            error.printStackTrace();
            fail(what + ": " + key);
          }
          Thread.sleep(100);
        }
      }
      if (!value.equals(valueOf(key))) {
        fail(what + ": " + key + " is " + value);
      }
    }
    check(what, !wanted.isEmpty());
  }

  void setAndGet(Client client) {
    for (String key : keys) {
      client.set(key, valueOf(key));
    }
    check("set and get", keys.stream().allMatch(key -> valueOf(key).equals(client.get(key))));
  }

  void spread(List<Long> sizes) {
    long sum = sizes.stream().mapToLong(size -> size).sum();
    check("three servers", sizes.size() == 3);
    check("over all servers", sum == KEYS && sizes.stream().allMatch(size -> size > KEYS / 10));
  }

  void scanned(List<String> found) {
    check("scan", found.size() == KEYS && Set.copyOf(found).equals(Set.copyOf(keys)));
  }

  /** A restart, the death of the leader and its return. */
  void faults(Client client) throws Exception {
    await("restart");
    untilRead(client, keys, "all keys after a restart");
    List<String> left = await("kill");
    check("some are left", left.size() > KEYS / 10 && left.size() < KEYS);
    untilRead(client, left, "keys of the others after the leader's death");
    for (String key : left) {
      client.set(key, valueOf(key));
    }
    check("and written", true);
    List<String> away = new ArrayList<>(keys);
    away.removeAll(left);
    check("a key that is away", !refusal(() -> client.get(away.get(0))).isEmpty());
    untilRead(client, left, "keys of the others are not held up by it");
    await("start");
    untilRead(client, keys, "all keys when it is back");
    try (Client anew = connect()) {
      untilRead(anew, keys, "and for who comes anew");
    }
    System.out.println(checks + " checks");
    // Threads of a library may still wait.
    System.exit(0);
  }

  /** Of the authority alone. */
  KeyStore trusted() {
    try (InputStream file = Files.newInputStream(authority)) {
      KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
      store.load(null, null);
      store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(file));
      return store;
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }
}
