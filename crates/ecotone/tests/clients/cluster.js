// A session of a cluster client with Debian's node-redis. Arguments: the server (host:port) and its password.
'use strict';

const { createCluster } = require('redis');

const [where, password] = process.argv.slice(2);
let checks = 0;

function check(name, isSo) {
  if (!isSo) {
    console.error(`not ok: ${name}`);
    process.exit(1);
  }
  checks += 1;
  console.log(`ok ${name}`);
}

async function session() {
  const cluster = createCluster({ rootNodes: [{ url: `redis://${where}` }], defaults: { password } });
  cluster.on('error', (error) => {
    console.error(error);
    process.exit(1);
  });
  await cluster.connect();
  for (let number = 0; number < 300; number += 1) {
    await cluster.set(`key:${number}`, String(number));
  }
  let found = 0;
  for (let number = 0; number < 300; number += 1) {
    found += Number((await cluster.get(`key:${number}`)) === String(number));
  }
  check('keys of many slots', found === 300);
  check('all at once', (await Promise.all(Array.from({ length: 300 }, (_, n) => cluster.incr(`counter:${n}`)))).every((n) => n === 1));
  check('one tag, one slot', (await cluster.mSet({ '{t}a': '1', '{t}b': '2' })) === 'OK');
  check('and read', (await cluster.mGet(['{t}a', '{t}b'])).join() === '1,2');
  check('a transaction in a slot', (await cluster.multi().set('{t}a', '5').incr('{t}a').exec()).join() === 'OK,6');
  let refused = '';
  await cluster.mGet(['a', 'b']).catch((error) => { refused = error.message; });
  check('two slots', refused.startsWith('CROSSSLOT'));
  check('a hash', (await cluster.hSet('h', 'f', 'v')) === 1 && (await cluster.hGetAll('h')).f === 'v');
  check('deleted', (await cluster.del('h')) === 1);
  await cluster.disconnect();
  console.log(`${checks} checks`);
}

session().catch((error) => {
  console.error(error);
  process.exit(1);
});
