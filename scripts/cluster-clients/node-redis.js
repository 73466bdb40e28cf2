// A session of node-redis against a cluster of several servers.
'use strict';

const { KEYS, check, faults, host, keys, password, port, refusal, run, tls, valueOf } = require('./session');

const { createCluster } = require('redis');

async function connect(more) {
  const socket = tls ? { tls: true, ...tls } : {};
  const cluster = createCluster({
    rootNodes: [{ url: `${tls ? 'rediss' : 'redis'}://${host}:${port}` }],
    defaults: { password, socket: { connectTimeout: 3000, ...socket } },
    ...more,
  });
  // It tries again by itself; what a command ends with is looked at.
  cluster.on('error', () => {});
  await cluster.connect();
  return cluster;
}

run(async () => {
  console.log(`version ${require('redis/package.json').version}`);
  const cluster = await connect();
  // Version 4 has a client for each at once.
  const masters = cluster.masters ?? cluster.getMasters();
  check('three servers', masters.length === 3);
  const nodes = await Promise.all(masters.map((master) => master.client ?? cluster.nodeClient(master)));
  check('all answer', (await Promise.all(nodes.map((node) => node.ping()))).join() === 'PONG,PONG,PONG');
  await Promise.all(nodes.map((node) => node.flushAll()));
  for (const key of keys) await cluster.set(key, valueOf(key));
  const found = await Promise.all(keys.map((key) => cluster.get(key)));
  check('set and get', found.every((value, place) => value === valueOf(keys[place])));
  const sizes = await Promise.all(nodes.map((node) => node.dbSize()));
  check('over all servers', sizes.reduce((sum, size) => sum + size) === KEYS && Math.min(...sizes) > KEYS / 10);
  const scanned = [];
  for (const node of nodes) {
    for await (const some of node.scanIterator({ MATCH: 'key:*', COUNT: 20 })) scanned.push(...[some].flat());
  }
  check('scan', scanned.sort().join() === [...keys].sort().join());
  const counted = await Promise.all(keys.map((_, number) => cluster.incr(`counter:${number}`)));
  check('a pipeline over all servers', counted.every((count) => count === 1));
  check('several keys of a tag', (await cluster.mSet({ '{tag}a': '1', '{tag}b': '2' })) === 'OK');
  check('and read', (await cluster.mGet(['{tag}a', '{tag}b'])).join() === '1,2');
  const done = await cluster.multi().set('{tag}a', '5').incr('{tag}a').mGet(['{tag}a', '{tag}b']).exec();
  check('a transaction', done.join() === 'OK,6,6,2');
  // Version 6 asks for several keys slot by slot.
  check('two slots', (await refusal(cluster.sInter(['a', 'b']), 5000)).startsWith('CROSSSLOT'));
  const reader = await connect({ useReplicas: true });
  const read = await Promise.all(keys.map((key) => reader.get(key)));
  check('reads from replicas, of which there are none', read.every((value, place) => value === valueOf(keys[place])));
  let anew;
  await faults(
    (key) => cluster.get(key),
    (key, value) => cluster.set(key, value),
    async (key) => (anew ??= await connect()).get(key),
  );
});
