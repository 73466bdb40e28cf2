//! The skewed distributions of the published workloads.
//!
//! All of them map one uniform number to one draw, so that a draw costs one power and the sequence
//! depends on the seed alone.

use super::random::{Random, mix64};

/// The Generalized Pareto distribution with location 0, as db_bench uses it for value sizes and
/// scan lengths.
///
/// Density `f(x) = (1/sigma) * (1 + k*x/sigma)^-(1/k + 1)`. A draw inverts the distribution
/// function as db_bench's `ParetoCdfInversion` does: `ceil(sigma * (u^-k - 1) / k)`. Source: Cao et
/// al., "Characterizing, Modeling, and Benchmarking RocksDB Key-Value Workloads at Facebook", FAST
/// 2020, section 6, and the flags of `tools/db_bench_tool.cc`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneralizedPareto {
    k: f64,
    sigma: f64,
}

impl GeneralizedPareto {
    /// The shape of value sizes: db_bench's `value_k`.
    pub const VALUE_K: f64 = 0.2615;
    /// The shape of scan lengths: db_bench's `iter_k`. At or above 1, so this distribution has no
    /// mean: callers bound it.
    pub const SCAN_K: f64 = 2.517;
    /// The scale of scan lengths in entries: db_bench's `iter_sigma`.
    pub const SCAN_SIGMA: f64 = 14.236;

    /// Value sizes in bytes with the given mean. db_bench's own scale (25.45) gives a mean of 34
    /// bytes; the scale here is `mean * (1 - k)`, which leaves the shape alone.
    pub fn value_bytes(mean_bytes: u32) -> Self {
        Self { k: Self::VALUE_K, sigma: f64::from(mean_bytes) * (1.0 - Self::VALUE_K) }
    }

    /// Scan lengths in entries, unbounded.
    pub fn scan_entries() -> Self {
        Self { k: Self::SCAN_K, sigma: Self::SCAN_SIGMA }
    }

    /// One draw, at least 0. Large draws saturate at `u64::MAX`.
    pub fn draw(&self, random: &mut Random) -> u64 {
        (self.sigma * (random.unit().powf(-self.k) - 1.0) / self.k).ceil() as u64
    }
}

/// Zipfian ranks: rank `i` (from 0) of `items` is drawn with probability `(i + 1)^-theta /
/// zeta(items)`.
///
/// The algorithm is that of Gray et al., "Quickly Generating Billion-Record Synthetic Databases",
/// SIGMOD 1994, section 3.2, by default with YCSB's constant theta of 0.99 (Cooper et al.,
/// "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010, `ZipfianGenerator`). Ranks 0 and 1
/// are exact; the rest follows a continuous approximation.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    /// YCSB's skew.
    pub const THETA: f64 = 0.99;

    /// Ranks `0..items` with YCSB's skew; `items` is at least 1.
    pub fn new(items: u64) -> Self {
        Self::with_theta(items, Self::THETA)
    }

    /// Ranks `0..items` with the skew `theta`, above 0 and below 1; `items` is at least 1.
    pub fn with_theta(items: u64, theta: f64) -> Self {
        let total = zeta(items, theta);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta(2.min(items), theta) / total);
        Self { items, theta, zeta: total, eta }
    }

    /// One rank in `0..items`.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled <= 1.0 || self.items == 1 {
            return 0;
        }
        if scaled <= 1.0 + 0.5f64.powf(self.theta) || self.items == 2 {
            return 1;
        }
        // A unit of exactly 1 would land on `items`.
        let exponent = 1.0 / (1.0 - self.theta);
        ((self.items as f64 * (self.eta * unit - self.eta + 1.0).powf(exponent)) as u64).min(self.items - 1)
    }
}

/// The generalised harmonic number `sum of i^-theta for i in 1..=items`.
///
/// Summed directly up to a bound, beyond it by the Euler-Maclaurin formula, whose error there is
/// below 1e-12: a large key space must not delay the start of a run.
fn zeta(items: u64, theta: f64) -> f64 {
    const DIRECT: u64 = 10_000;
    let direct: f64 = (1..=items.min(DIRECT)).map(|item| (item as f64).powf(-theta)).sum();
    if items <= DIRECT {
        return direct;
    }
    let (from, to) = (DIRECT as f64, items as f64);
    let integral = (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (to.powf(-theta) - from.powf(-theta)) / 2.0;
    let slopes = theta * (from.powf(-theta - 1.0) - to.powf(-theta - 1.0)) / 12.0;
    direct + integral + ends + slopes
}

/// YCSB's scrambled Zipfian: a Zipfian rank over ten billion items, scattered over the key space by
/// a hash, so that the popular keys do not lie side by side (`ScrambledZipfianGenerator` and its
/// `ITEM_COUNT`; the hash is ours).
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    ranks: Zipfian,
    keys: u64,
}

impl ScrambledZipfian {
    /// The number of items of the underlying Zipfian, whatever the number of keys: YCSB's
    /// `ITEM_COUNT`.
    pub const ITEMS: u64 = 10_000_000_000;

    /// Key numbers `0..keys`; `keys` is at least 1.
    pub fn new(keys: u64) -> Self {
        Self { ranks: Zipfian::new(Self::ITEMS), keys }
    }

    /// One key number in `0..keys`.
    pub fn draw(&self, random: &mut Random) -> u64 {
        self.key_of_rank(self.ranks.draw(random))
    }

    /// The key number on which a rank falls.
    pub fn key_of_rank(&self, rank: u64) -> u64 {
        mix64(rank ^ 0xcbf2_9ce4_8422_2325) % self.keys
    }
}

/// A Zipfian over exactly the keys there are, scattered over the key space by a bijection: every
/// key has one rank, so the skew is what theta says also where it is mild. (Under a mild skew
/// [`ScrambledZipfian`], whose ranks are far more than the keys, would come out as uniform.)
#[derive(Clone, Debug)]
pub struct ScatteredZipfian {
    ranks: Zipfian,
    keys: u64,
    /// Without a common divisor with `keys`, so that its multiples meet every key once.
    step: u64,
}

impl ScatteredZipfian {
    /// Key numbers `0..keys` with the skew `theta`, above 0 and below 1; `keys` is at least 1.
    pub fn new(keys: u64, theta: f64) -> Self {
        // Multiples of the golden section lie far apart.
        let section = ((keys as f64 * 0.618_033_988_749_895) as u64).max(1);
        let step = (section..).find(|step| divisor(*step, keys) == 1).unwrap_or(1);
        Self { ranks: Zipfian::with_theta(keys, theta), keys, step }
    }

    /// One key number in `0..keys`.
    pub fn draw(&self, random: &mut Random) -> u64 {
        self.key_of_rank(self.ranks.draw(random))
    }

    /// The key number of a rank in `0..keys`.
    pub fn key_of_rank(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.step) % u128::from(self.keys)) as u64
    }
}

/// The greatest common divisor (Euclid).
fn divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 1_000_000;

    #[test]
    fn value_sizes_have_the_asked_mean_within_two_percent() {
        for mean_bytes in [100, 1000, 4000] {
            let sizes = GeneralizedPareto::value_bytes(mean_bytes);
            let mut random = Random::new(1, u64::from(mean_bytes));
            let total: u64 = (0..DRAWS).map(|_| sizes.draw(&mut random)).sum();
            let mean = total as f64 / DRAWS as f64;
            // Rounding up adds half a byte.
            assert!(
                (mean - 0.5 - f64::from(mean_bytes)).abs() < 0.02 * f64::from(mean_bytes),
                "{mean} of {mean_bytes}"
            );
        }
    }

    #[test]
    fn value_sizes_have_the_quantiles_of_the_distribution_function() {
        // F(x) = 1 - (1 + k x / sigma)^(-1/k).
        let sizes = GeneralizedPareto::value_bytes(1000);
        let mut random = Random::new(2, 0);
        let mut draws: Vec<u64> = (0..DRAWS).map(|_| sizes.draw(&mut random)).collect();
        draws.sort_unstable();
        for quantile in [0.1, 0.5, 0.9, 0.99, 0.999] {
            let x = draws[(quantile * DRAWS as f64) as usize] as f64;
            let theory = 1.0 - (1.0 + sizes.k * x / sizes.sigma).powf(-1.0 / sizes.k);
            assert!((theory - quantile).abs() < 0.002, "quantile {quantile}: {x} bytes, theory {theory}");
        }
    }

    #[test]
    fn zeta_agrees_with_the_plain_sum_and_with_ycsb() {
        for items in [1u64, 2, 9_999, 10_000, 10_001, 1_000_000] {
            let plain: f64 = (1..=items).rev().map(|item| (item as f64).powf(-0.99)).sum();
            let zeta = zeta(items, 0.99);
            assert!((zeta - plain).abs() < 1e-9, "{items}: {zeta} and {plain}");
        }
        // YCSB's precomputed ZETAN of ten billion items.
        assert!((zeta(ScrambledZipfian::ITEMS, 0.99) - 26.469_028_201_783_02).abs() < 1e-6);
    }

    #[test]
    fn the_head_of_the_zipfian_has_its_theoretical_frequencies() {
        let zipfian = Zipfian::new(1_000_000);
        let mut random = Random::new(3, 0);
        let mut counts = [0u32; 2];
        let mut first_hundred = 0;
        for _ in 0..DRAWS {
            let rank = zipfian.draw(&mut random);
            assert!(rank < 1_000_000);
            if let Some(count) = counts.get_mut(rank as usize) {
                *count += 1;
            }
            first_hundred += u32::from(rank < 100);
        }
        let share = |probability: f64| probability / zeta(1_000_000, 0.99) * DRAWS as f64;
        assert!((f64::from(counts[0]) / share(1.0) - 1.0).abs() < 0.02, "{counts:?}");
        assert!((f64::from(counts[1]) / share(2f64.powf(-0.99)) - 1.0).abs() < 0.02, "{counts:?}");
        // The approximation beyond the second rank is good to a few per cent.
        assert!((f64::from(first_hundred) / share(zeta(100, 0.99)) - 1.0).abs() < 0.04, "{first_hundred}");
    }

    #[test]
    fn the_scrambled_head_is_as_popular_as_ycsb_makes_it() {
        let keys = 10_000;
        let zipfian = ScrambledZipfian::new(keys);
        let mut random = Random::new(4, 0);
        let hottest = zipfian.key_of_rank(0);
        let mut hits = 0;
        for _ in 0..DRAWS {
            let key = zipfian.draw(&mut random);
            assert!(key < keys);
            hits += u32::from(key == hottest);
        }
        // 1 / 26.469 for rank 0; what other ranks add to the same key is the tail's share of one
        // key in ten thousand.
        let share = f64::from(hits) / DRAWS as f64;
        assert!(share > 0.0375 && share < 0.0390, "{share}");
    }

    #[test]
    fn tiny_zipfians_stay_in_range() {
        let mut random = Random::new(5, 0);
        for items in 1..5 {
            let zipfian = Zipfian::new(items);
            assert!((0..10_000).all(|_| zipfian.draw(&mut random) < items));
            let scattered = ScatteredZipfian::new(items, 0.5);
            assert!((0..10_000).all(|_| scattered.draw(&mut random) < items));
        }
    }

    #[test]
    fn every_key_has_one_rank_and_the_popular_ones_lie_apart() {
        for keys in [1u64, 2, 10, 97, 1024, 9_999] {
            let zipfian = ScatteredZipfian::new(keys, 0.9);
            let mut seen: Vec<u64> = (0..keys).map(|rank| zipfian.key_of_rank(rank)).collect();
            if keys > 100 {
                assert!(seen[..10].windows(2).all(|pair| pair[0].abs_diff(pair[1]) > keys / 5), "{:?}", &seen[..10]);
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..keys), "{keys}");
        }
    }

    #[test]
    fn the_skew_is_what_theta_says() {
        // The share of the most popular tenth of the keys is zeta(keys / 10) / zeta(keys).
        let keys = 10_000;
        for theta in [0.2, 0.5, 0.9, 0.99] {
            let zipfian = ScatteredZipfian::new(keys, theta);
            let mut popular = vec![false; keys as usize];
            (0..keys / 10).for_each(|rank| popular[zipfian.key_of_rank(rank) as usize] = true);
            let mut random = Random::new(6, 0);
            let hits = (0..DRAWS).filter(|_| popular[zipfian.draw(&mut random) as usize]).count();
            let (share, theory) = (hits as f64 / DRAWS as f64, zeta(keys / 10, theta) / zeta(keys, theta));
            assert!((share / theory - 1.0).abs() < 0.04, "theta {theta}: {share}, theory {theory}");
        }
    }
}
