//! Made-up cities with regions and countries, as many as you like, the same for a seed: data for tables that are looked up.
//!
//! Some 240 countries, of which a few have most cities, in 24 languages; a city's name is a stem of its language, often with a suffix or another word. Of 370,000
//! some 246,000 names are different (18 bits), and 5,500 pairs of region and country (13 bits); a row takes 27 bytes as a JSON array.

/// How many languages names come from, and how many stems, suffixes and words each has.
const LANGUAGES: usize = 24;
const STEMS: usize = 2_000;
const SUFFIXES: usize = 60;
const WORDS: usize = 40;
const SYLLABLES: usize = 60;
const COUNTRIES: usize = 240;
const REGIONS_MAX: usize = 90;

const CONSONANTS: &[u8] = b"bcdfghjklmnprstvwz";
const VOWELS: &[u8] = b"aeiou";

/// A row: city, region, country.
pub type City = [String; 3];

/// Things of which the first ones are drawn most often.
struct Skewed<T> {
    things: Vec<T>,
    /// The sum of the weights up to each.
    sums: Vec<f64>,
}

impl<T> Skewed<T> {
    /// The weight of the nth is `n` to the power of `-exponent`.
    fn new(things: Vec<T>, exponent: f64) -> Skewed<T> {
        let mut sum = 0.0;
        let sums = (1..=things.len()).map(|nth| {
            sum += (nth as f64).powf(-exponent);
            sum
        });
        Skewed { sums: sums.collect(), things }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> &T {
        let at = random.f64() * self.sums.last().copied().unwrap_or_default();
        let place = self.sums.partition_point(|sum| *sum < at);
        &self.things[place.min(self.things.len() - 1)]
    }
}

struct Language {
    stems: Skewed<String>,
    suffixes: Skewed<String>,
    words: Skewed<String>,
}

struct Country {
    code: String,
    language: usize,
    regions: Skewed<String>,
}

/// Draws rows.
pub struct Cities {
    random: fastrand::Rng,
    languages: Vec<Language>,
    countries: Skewed<Country>,
}

impl Cities {
    /// The rows of this seed.
    pub fn new(seed: u64) -> Cities {
        let mut random = fastrand::Rng::with_seed(seed);
        let languages = (0..LANGUAGES).map(|_| language(&mut random)).collect();
        let mut codes: Vec<String> = (b'A'..=b'Z')
            .flat_map(|first| (b'A'..=b'Z').map(move |second| [char::from(first), char::from(second)].iter().collect()))
            .collect();
        random.shuffle(&mut codes);
        let countries = codes.into_iter().take(COUNTRIES).enumerate();
        let countries = countries.map(|(number, code)| {
            // Most have a few regions, some have many.
            let count = ((6.0 / random.f64().max(1e-6).powf(1.0 / 0.9)) as usize).clamp(1, REGIONS_MAX);
            let region = |at: usize| match number % 3 {
                0 => [b'A' + (at % 26) as u8, b'A' + (at / 26) as u8].iter().map(|byte| char::from(*byte)).collect(),
                _ => format!("{at:02}"),
            };
            Country { code, language: number % LANGUAGES, regions: Skewed::new((0..count).map(region).collect(), 1.0) }
        });
        let countries = Skewed::new(countries.collect(), 1.3);
        Cities { random, languages, countries }
    }
}

fn language(random: &mut fastrand::Rng) -> Language {
    let consonants = random.choose_multiple(CONSONANTS.iter().copied(), 10);
    let vowels = random.choose_multiple(VOWELS.iter().copied(), 4);
    let mut one = |from: &[u8]| char::from(from[random.usize(..from.len())]);
    let mut syllables = Vec::with_capacity(SYLLABLES);
    for number in 0..SYLLABLES {
        let mut syllable = String::from_iter([one(&consonants), one(&vowels)]);
        if number % 2 == 0 {
            syllable.push(one(&consonants));
        }
        syllables.push(syllable);
    }
    let mut some = |least: usize, most: usize| -> String {
        (0..random.usize(least..=most)).map(|_| syllables[random.usize(..SYLLABLES)].as_str()).collect()
    };
    let stems = (0..STEMS).map(|_| some(2, 3)).collect();
    let suffixes = (0..SUFFIXES).map(|_| some(1, 2)).collect();
    let words = (0..WORDS).map(|_| capital(&some(1, 3))).collect();
    Language { stems: Skewed::new(stems, 0.8), suffixes: Skewed::new(suffixes, 0.8), words: Skewed::new(words, 1.0) }
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

impl Iterator for Cities {
    type Item = City;

    fn next(&mut self) -> Option<City> {
        let random = &mut self.random;
        let country = self.countries.draw(random);
        let language = &self.languages[country.language];
        let mut name = language.stems.draw(random).clone();
        if random.f64() < 0.6 {
            name += language.suffixes.draw(random);
        }
        name = capital(&name);
        let kind = random.f64();
        if kind < 0.30 {
            name = format!("{} {name}", language.words.draw(random));
        } else if kind < 0.45 {
            name = format!("{name} {}", language.words.draw(random));
        }
        Some([name, country.regions.draw(random).clone(), country.code.clone()])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn rows_repeat_as_real_ones_do() {
        let rows: Vec<City> = Cities::new(1).take(370_000).collect();
        assert_eq!(Cities::new(1).next().as_ref(), rows.first());
        let names: HashSet<&str> = rows.iter().map(|row| &row[0][..]).collect();
        let places: HashSet<[&str; 2]> = rows.iter().map(|row| [&row[1][..], &row[2][..]]).collect();
        // As an array with a blank behind each comma.
        let json: usize = rows.iter().map(|row| row.iter().map(String::len).sum::<usize>() + 12).sum();
        let mean = json as f64 / rows.len() as f64;
        assert!((1 << 17..1 << 18).contains(&names.len()), "{} names", names.len());
        assert!((1 << 12..1 << 13).contains(&places.len()), "{} places", places.len());
        assert!((26.8..27.8).contains(&mean), "{mean} bytes a row");
    }
}
