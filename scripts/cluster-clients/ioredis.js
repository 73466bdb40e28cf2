// A session of ioredis against a cluster of several servers.
'use strict';

const { KEYS, check, faults, host, keys, password, port, refusal, run, tls, valueOf } = require('./session');

const ioredis = require('ioredis');

const Cluster = ioredis.Cluster ?? ioredis.default.Cluster;

function connect(more) {
  const cluster = new Cluster([{ host, port }], {
    redisOptions: { password, tls, connectTimeout: 3000, maxRetriesPerRequest: 1 },
    // As certificates of a loopback address need it.
    ...(tls ? { dnsLookup: (address, callback) => callback(null, address) } : {}),
    ...more,
  });
  // It tries again by itself; what a command ends with is looked at.
  cluster.on('error', () => {});
  return cluster;
}

run(async () => {
  console.log(`version ${require('ioredis/package.json').version}`);
  const cluster = connect();
  await new Promise((resolve) => { cluster.once('ready', resolve); });
  await cluster.ping();
  const nodes = cluster.nodes('master');
  check('three servers', nodes.length === 3 && cluster.nodes('slave').length === 0);
  check('all answer', (await Promise.all(nodes.map((node) => node.ping()))).join() === 'PONG,PONG,PONG');
  await Promise.all(nodes.map((node) => node.flushall()));
  for (const key of keys) await cluster.set(key, valueOf(key));
  const found = await Promise.all(keys.map((key) => cluster.get(key)));
  check('set and get', found.every((value, place) => value === valueOf(keys[place])));
  const sizes = await Promise.all(nodes.map((node) => node.dbsize()));
  check('over all servers', sizes.reduce((sum, size) => sum + size) === KEYS && Math.min(...sizes) > KEYS / 10);
  const scanned = [];
  for (const node of nodes) {
    for await (const some of node.scanStream({ match: 'key:*', count: 20 })) scanned.push(...some);
  }
  check('scan', scanned.sort().join() === [...keys].sort().join());
  // Its pipelines are of one server.
  const pipeline = cluster.pipeline();
  for (let number = 0; number < 100; number += 1) pipeline.incr(`{tag}:${number}`);
  check('a pipeline', (await pipeline.exec()).every(([error, count]) => error === null && count === 1));
  const counted = await Promise.all(keys.map((_, number) => cluster.incr(`counter:${number}`)));
  check('all at once', counted.every((count) => count === 1));
  check('several keys of a tag', (await cluster.mset({ '{tag}a': '1', '{tag}b': '2' })) === 'OK');
  check('and read', (await cluster.mget('{tag}a', '{tag}b')).join() === '1,2');
  const done = await cluster.multi().set('{tag}a', '5').incr('{tag}a').mget('{tag}a', '{tag}b').exec();
  check('a transaction', done.map(([, reply]) => reply).join() === 'OK,6,6,2');
  check('two slots', (await refusal(cluster.mget('a', 'b'), 5000)).startsWith('CROSSSLOT'));
  const reader = connect({ scaleReads: 'slave' });
  const read = await Promise.all(keys.map((key) => reader.get(key)));
  check('reads from replicas, of which there are none', read.every((value, place) => value === valueOf(keys[place])));
  let anew;
  await faults(
    (key) => cluster.get(key),
    (key, value) => cluster.set(key, value),
    (key) => (anew ??= connect()).get(key),
  );
});
