//! A file's mutants behind switches: its text with all of them in it, each taken where its number is switched on, and none where no number is.
//!
//! So they are built once for all of them, and not each by itself: Untch, Offutt and Harrold, "Mutation analysis using mutant schemata", 1993. What a mutant is, is `cargo-mutants`' to say; how each of
//! its kinds is put behind a switch is said here:
//!
//! | mutant | behind its switch |
//! |---|---|
//! | a function answers `R` | `if on { return R; }` before its body |
//! | another operator, one that is left out | `(if on { a - b } else { a + b })` |
//! | an arm is gone | `pattern if !on && (guard) => …` |
//! | a guard is always true, or never | `(on \|\| (!on && (guard)))` |
//! | a field is left to the rest | `(if on { S { ..rest } } else { S { field, ..rest } })` |
//!
//! What a constant is computed of has no switch, nor a function that hides its type, nor a chain that binds names: those stay apart.

use std::collections::BTreeMap;
use std::ops::Range;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Block, Expr, ExprBinary, ExprStruct, ExprUnary, Signature, Type};

use crate::command::{Context, Failure, Result};

/// What kinds of mutants there are, by `cargo-mutants`' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

impl Genre {
    pub(super) fn of(name: &str) -> Option<Genre> {
        Some(match name {
            "FnValue" => Genre::FnValue,
            "BinaryOperator" => Genre::BinaryOperator,
            "UnaryOperator" => Genre::UnaryOperator,
            "MatchArm" => Genre::MatchArm,
            "MatchArmGuard" => Genre::MatchArmGuard,
            "StructField" => Genre::StructField,
            _ => return None,
        })
    }
}

/// A mutant of a file.
pub(super) struct Mutant {
    pub(super) number: u32,
    pub(super) genre: Genre,
    /// Where it begins: its line, and its column, both from 1 on.
    pub(super) begins: (usize, usize),
    /// What takes the place.
    pub(super) text: String,
}

/// A file's text with switches.
pub(super) struct Switched {
    pub(super) text: String,
    /// Each mutant in it: where its own text stands, and where all that was made for its place.
    pub(super) placed: Vec<Placed>,
    /// Those that have no switch.
    pub(super) apart: Vec<u32>,
}

pub(super) struct Placed {
    pub(super) number: u32,
    pub(super) own: Range<usize>,
    /// Of an arm that is all of its match: with a guard it does not count among those that must cover all there is.
    pub(super) around: Range<usize>,
    is_arm: bool,
}

/// Puts mutants of a file behind switches.
pub(super) fn switched(text: &str, mutants: &[Mutant]) -> Result<Switched> {
    let file = syn::parse_file(text).context(|| "it cannot be parsed".to_owned())?;
    let mut finder = Finder { lines: Lines::of(text), sites: Vec::new(), constant: 0 };
    finder.visit_file(&file);
    let Finder { lines, mut sites, .. } = finder;
    let by_key: BTreeMap<(Genre, usize), usize> =
        sites.iter().enumerate().flat_map(|(at, site)| site.keys.iter().map(move |key| (*key, at))).collect();
    let mut apart = Vec::new();
    for (order, mutant) in mutants.iter().enumerate() {
        let begins = lines.offset(mutant.begins.0, mutant.begins.1 - 1);
        match by_key.get(&(mutant.genre, begins)) {
            Some(&at) => sites[at].mutants.push((order, begins)),
            None => apart.push(mutant.number),
        }
    }
    sites.retain(|site| !site.mutants.is_empty() || matches!(site.shape, Shape::Match));
    // What holds others comes before them.
    let order = |site: &Site| (!matches!(site.shape, Shape::Body), site.keys.first().map(|key| key.0));
    sites.sort_by_key(|site| (site.range.start, usize::MAX - site.range.end, order(site)));
    let mut writer = Writer { text, mutants, out: String::new(), placed: Vec::new() };
    writer.write(0..text.len(), &sites)?;
    Ok(Switched { text: writer.out, placed: writer.placed, apart })
}

/// Where each line begins.
struct Lines<'t> {
    text: &'t str,
    begins: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Lines<'t> {
        let begins = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Lines { text, begins }
    }

    /// Of a line from 1 on, and of characters before it in the line.
    fn offset(&self, line: usize, characters: usize) -> usize {
        let begins = self.begins.get(line.saturating_sub(1)).copied().unwrap_or(self.text.len());
        let rest = &self.text[begins..];
        begins + rest.char_indices().nth(characters).map_or(rest.len(), |(at, _)| at)
    }

    fn range(&self, span: Span) -> Range<usize> {
        let offset = |at: LineColumn| self.offset(at.line, at.column);
        offset(span.start())..offset(span.end())
    }
}

/// A place of mutants.
struct Site {
    range: Range<usize>,
    shape: Shape,
    /// Where mutants begin that are made here.
    keys: Vec<(Genre, usize)>,
    /// Which of the list, and where each begins.
    mutants: Vec<(usize, usize)>,
}

enum Shape {
    Body,
    /// An expression with an operator: where that stands.
    Operator(Range<usize>),
    /// The pattern of an arm up to where its guard ends, and that.
    Arm {
        pattern: Range<usize>,
        guard: Option<Range<usize>>,
    },
    Guard,
    /// It has no mutants itself.
    Match,
    /// Its fields, each with its comma.
    Struct(Vec<Range<usize>>),
}

/// Finds all places where a mutant could be made.
struct Finder<'t> {
    lines: Lines<'t>,
    sites: Vec<Site>,
    /// How deep in what is computed before anything runs.
    constant: usize,
}

impl Finder<'_> {
    fn add(&mut self, range: Range<usize>, shape: Shape, keys: Vec<(Genre, usize)>) {
        if self.constant == 0 {
            self.sites.push(Site { range, shape, keys, mutants: Vec::new() });
        }
    }

    fn constant(&mut self, within: impl FnOnce(&mut Self)) {
        self.constant += 1;
        within(self);
        self.constant -= 1;
    }

    fn function(&mut self, signature: &Signature, block: &Block, within: impl FnOnce(&mut Self)) {
        if signature.constness.is_some() {
            return self.constant(within);
        }
        if let (Some(first), Some(last), false) = (block.stmts.first(), block.stmts.last(), hides_its_type(signature)) {
            let range = self.lines.range(first.span()).start..self.lines.range(last.span()).end;
            let keys = vec![(Genre::FnValue, range.start)];
            self.add(range, Shape::Body, keys);
        }
        within(self);
    }
}

/// What it answers is known by its body alone: an early answer could be of another type.
fn hides_its_type(signature: &Signature) -> bool {
    struct Hidden(bool);
    impl<'a> Visit<'a> for Hidden {
        fn visit_type(&mut self, of: &'a Type) {
            self.0 |= matches!(of, Type::ImplTrait(_));
            visit::visit_type(self, of);
        }
    }
    let mut hidden = Hidden(false);
    hidden.visit_return_type(&signature.output);
    hidden.0
}

/// Names that are bound between `&&` are seen by what follows.
fn binds(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(ExprBinary { left, op: BinOp::And(_), right, .. }) => binds(left) || binds(right),
        _ => false,
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_fn(&mut self, of: &'a syn::ItemFn) {
        self.function(&of.sig, &of.block, |finder| visit::visit_item_fn(finder, of));
    }

    fn visit_impl_item_fn(&mut self, of: &'a syn::ImplItemFn) {
        self.function(&of.sig, &of.block, |finder| visit::visit_impl_item_fn(finder, of));
    }

    fn visit_trait_item_fn(&mut self, of: &'a syn::TraitItemFn) {
        match &of.default {
            Some(block) => self.function(&of.sig, block, |finder| visit::visit_trait_item_fn(finder, of)),
            None => visit::visit_trait_item_fn(self, of),
        }
    }

    fn visit_item_const(&mut self, of: &'a syn::ItemConst) {
        self.constant(|finder| visit::visit_item_const(finder, of));
    }

    fn visit_item_static(&mut self, of: &'a syn::ItemStatic) {
        self.constant(|finder| visit::visit_item_static(finder, of));
    }

    fn visit_impl_item_const(&mut self, of: &'a syn::ImplItemConst) {
        self.constant(|finder| visit::visit_impl_item_const(finder, of));
    }

    fn visit_trait_item_const(&mut self, of: &'a syn::TraitItemConst) {
        self.constant(|finder| visit::visit_trait_item_const(finder, of));
    }

    fn visit_variant(&mut self, of: &'a syn::Variant) {
        self.constant(|finder| visit::visit_variant(finder, of));
    }

    fn visit_expr_const(&mut self, of: &'a syn::ExprConst) {
        self.constant(|finder| visit::visit_expr_const(finder, of));
    }

    fn visit_expr_repeat(&mut self, of: &'a syn::ExprRepeat) {
        self.visit_expr(&of.expr);
        self.constant(|finder| finder.visit_expr(&of.len));
    }

    fn visit_type(&mut self, of: &'a Type) {
        self.constant(|finder| visit::visit_type(finder, of));
    }

    fn visit_generic_argument(&mut self, of: &'a syn::GenericArgument) {
        self.constant(|finder| visit::visit_generic_argument(finder, of));
    }

    fn visit_pat(&mut self, of: &'a syn::Pat) {
        self.constant(|finder| visit::visit_pat(finder, of));
    }

    fn visit_expr_binary(&mut self, of: &'a ExprBinary) {
        if !binds(&of.left) && !binds(&of.right) {
            let operator = self.lines.range(of.op.span());
            let keys = vec![(Genre::BinaryOperator, operator.start)];
            self.add(self.lines.range(of.span()), Shape::Operator(operator), keys);
        }
        visit::visit_expr_binary(self, of);
    }

    fn visit_expr_unary(&mut self, of: &'a ExprUnary) {
        let operator = self.lines.range(of.op.span());
        let keys = vec![(Genre::UnaryOperator, operator.start)];
        self.add(self.lines.range(of.span()), Shape::Operator(operator), keys);
        visit::visit_expr_unary(self, of);
    }

    fn visit_arm(&mut self, of: &'a Arm) {
        let pattern = self.lines.range(of.pat.span());
        let guard = of.guard.as_ref().map(|(_, guard)| self.lines.range(guard.span()));
        if let Some(guard) = &guard {
            let keys = vec![(Genre::MatchArmGuard, guard.start)];
            self.add(guard.clone(), Shape::Guard, keys);
        }
        let range = pattern.start..guard.as_ref().map_or(pattern.end, |guard| guard.end);
        let keys = vec![(Genre::MatchArm, pattern.start)];
        self.add(range, Shape::Arm { pattern, guard }, keys);
        visit::visit_arm(self, of);
    }

    fn visit_expr_match(&mut self, of: &'a syn::ExprMatch) {
        let range = self.lines.range(of.span());
        self.add(range, Shape::Match, Vec::new());
        visit::visit_expr_match(self, of);
    }

    fn visit_expr_struct(&mut self, of: &'a ExprStruct) {
        let field = |pair: syn::punctuated::Pair<&syn::FieldValue, &syn::Token![,]>| {
            let (field, comma) = pair.into_tuple();
            let range = self.lines.range(field.span());
            range.start..comma.map_or(range.end, |comma| self.lines.range(comma.span()).end)
        };
        let fields: Vec<Range<usize>> = of.fields.pairs().map(field).collect();
        let keys = fields.iter().map(|field| (Genre::StructField, field.start)).collect();
        self.add(self.lines.range(of.span()), Shape::Struct(fields), keys);
        visit::visit_expr_struct(self, of);
    }
}

/// Writes a text with its switches.
struct Writer<'t> {
    text: &'t str,
    mutants: &'t [Mutant],
    out: String,
    placed: Vec<Placed>,
}

impl Writer<'_> {
    /// A part of the text, with the sites in it, those that hold others before them.
    fn write(&mut self, range: Range<usize>, mut sites: &[Site]) -> Result<()> {
        let mut at = range.start;
        while let Some((site, rest)) = sites.split_first() {
            if site.range.start < at || site.range.end > range.end {
                return Err(Failure(format!("mutants at {} and {at} lie across each other", site.range.start)));
            }
            let inner = rest.iter().take_while(|other| other.range.start < site.range.end).count();
            self.out.push_str(&self.text[at..site.range.start]);
            self.site(site, &rest[..inner])?;
            (at, sites) = (site.range.end, &rest[inner..]);
        }
        self.out.push_str(&self.text[at..range.end]);
        Ok(())
    }

    fn site(&mut self, site: &Site, inner: &[Site]) -> Result<()> {
        let (begins, first) = (self.out.len(), self.placed.len());
        let range = site.range.clone();
        match &site.shape {
            Shape::Body => {
                for (mutant, _) in &site.mutants {
                    self.branch(*mutant, "if ", " { return ", |writer, mutant| writer.out += &mutant.text);
                    self.out += "; } ";
                }
                self.write(range, inner)?;
            }
            Shape::Operator(operator) => {
                let (before, behind) = (range.start..operator.start, operator.end..range.end);
                self.either(site, inner, |writer, mutant, _| {
                    writer.out +=
                        &format!("{}{}{}", &writer.text[before.clone()], mutant.text, &writer.text[behind.clone()]);
                })?;
            }
            Shape::Struct(fields) => {
                self.either(site, inner, |writer, _, begins| {
                    let field = fields.iter().find(|field| field.start == begins).cloned().unwrap_or(begins..begins);
                    writer.out +=
                        &format!("{}{}", &writer.text[range.start..field.start], &writer.text[field.end..range.end]);
                })?;
            }
            Shape::Arm { pattern, guard } => {
                self.out.push_str(&self.text[pattern.clone()]);
                for (at, (mutant, _)) in site.mutants.iter().enumerate() {
                    self.branch(*mutant, if at == 0 { " if !" } else { " && !" }, "", |_, _| {});
                }
                if let Some(guard) = guard {
                    self.out += " && (";
                    self.write(guard.clone(), inner)?;
                    self.out += ")";
                }
            }
            Shape::Match => self.write(range, inner)?,
            Shape::Guard => {
                for (mutant, _) in &site.mutants {
                    let sign = if self.mutants[*mutant].text == "true" { "(" } else { "(!" };
                    let joined = if sign == "(" { " || (" } else { " && (" };
                    self.branch(*mutant, sign, joined, |_, _| {});
                }
                self.write(range, inner)?;
                self.out += &"))".repeat(site.mutants.len());
            }
        }
        let around = begins..self.out.len();
        // What was placed within sites of this one knows its own already.
        for placed in &mut self.placed[first..] {
            let is_match = matches!(site.shape, Shape::Match) && std::mem::take(&mut placed.is_arm);
            if placed.around.is_empty() || is_match {
                placed.around = around.clone();
            }
        }
        Ok(())
    }

    /// Each mutant's expression, or what it was.
    fn either(&mut self, site: &Site, inner: &[Site], write: impl Fn(&mut Self, &Mutant, usize)) -> Result<()> {
        self.out += "(";
        for (mutant, begins) in &site.mutants {
            self.branch(*mutant, "if ", " { ", |writer, mutant| write(writer, mutant, *begins));
            self.out += " } else ";
        }
        self.out += "{ ";
        self.write(site.range.clone(), inner)?;
        self.out += " })";
        Ok(())
    }

    /// The switch of a mutant, and its own text behind it.
    fn branch(&mut self, mutant: usize, before: &str, behind: &str, own: impl FnOnce(&mut Self, &Mutant)) {
        let mutants = self.mutants;
        let mutant = &mutants[mutant];
        let is_arm = mutant.genre == Genre::MatchArm;
        self.out += &format!("{before}crate::switches::is_on({}){behind}", mutant.number);
        let begins = self.out.len();
        own(self, mutant);
        self.placed.push(Placed { number: mutant.number, own: begins..self.out.len(), around: 0..0, is_arm });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All mutants of these, numbered from 1 on; each is told by its line, its column and its text.
    fn text(code: &str, mutants: &[(Genre, (usize, usize), &str)]) -> Switched {
        let mutant = |(at, (genre, begins, text)): (usize, &(Genre, (usize, usize), &str))| Mutant {
            number: at as u32 + 1,
            genre: *genre,
            begins: *begins,
            text: (*text).to_owned(),
        };
        let mutants: Vec<Mutant> = mutants.iter().enumerate().map(mutant).collect();
        switched(code, &mutants).unwrap()
    }

    /// All that was made for the place of a mutant.
    fn out_of(switched: &Switched, number: u32) -> String {
        let placed = switched.placed.iter().find(|placed| placed.number == number).unwrap();
        switched.text[placed.around.clone()].to_owned()
    }

    fn short(switched: &Switched) -> String {
        switched.text.replace("crate::switches::is_on", "on")
    }

    #[test]
    fn a_function_and_the_operators_in_it() {
        let code = "fn f(a: u8) -> bool {\n    !(a + 1 > 2)\n}\n";
        let switched = text(
            code,
            &[
                (Genre::FnValue, (2, 5), "true"),
                (Genre::FnValue, (2, 5), "false"),
                (Genre::UnaryOperator, (2, 5), ""),
                (Genre::BinaryOperator, (2, 13), "<"),
                (Genre::BinaryOperator, (2, 9), "-"),
            ],
        );
        let wanted = "fn f(a: u8) -> bool {\n    if on(1) { return true; } if on(2) { return false; } \
                      (if on(3) { (a + 1 > 2) } else { !((if on(4) { a + 1 < 2 } else { (if on(5) { a - 1 } else { a + 1 }) > 2 })) })\n}\n";
        assert_eq!(short(&switched), wanted);
        assert!(switched.apart.is_empty());
        let of = |number: u32| switched.placed.iter().find(|placed| placed.number == number).unwrap();
        assert_eq!(&switched.text[of(5).own.clone()], "a - 1 ".trim_end());
        assert!(of(5).around.start > of(4).own.end && of(5).around.end < of(4).around.end);
    }

    #[test]
    fn arms_guards_and_fields() {
        let code = "fn f(s: S) -> S {\n    match s.a {\n        1 if s.b => g(),\n        2 => S { a: 1, b: s.b, ..s },\n        _ => s,\n    }\n}\n";
        let switched = text(
            code,
            &[
                (Genre::MatchArm, (3, 9), ""),
                (Genre::MatchArmGuard, (3, 14), "true"),
                (Genre::MatchArmGuard, (3, 14), "false"),
                (Genre::MatchArm, (4, 9), ""),
                (Genre::StructField, (4, 24), ""),
            ],
        );
        let out = short(&switched);
        let of = |number: u32| out_of(&switched, number);
        assert!(of(1).starts_with("match s.a {") && of(1) == of(4) && of(2).starts_with("(crate"), "{}", of(2));
        assert!(out.contains("        1 if !on(1) && ((on(2) || ((!on(3) && (s.b))))) => g(),\n"), "{out}");
        assert!(
            out.contains("        2 if !on(4) => (if on(5) { S { a: 1,  ..s } } else { S { a: 1, b: s.b, ..s } }),\n"),
            "{out}"
        );
    }

    #[test]
    fn what_cannot_have_a_switch_stays_apart() {
        let code = "const A: u8 = 1 + 1;\nconst fn f() -> u8 {\n    2 + 2\n}\nfn g() -> impl Iterator<Item = u8> {\n    [0; 1 + 1].into_iter()\n}\nfn h(a: Option<u8>) -> bool {\n    if let Some(b) = a && b > 1 { true } else { false }\n}\n";
        let switched = text(
            code,
            &[
                (Genre::BinaryOperator, (1, 17), "-"),
                (Genre::FnValue, (3, 5), "0"),
                (Genre::BinaryOperator, (3, 7), "-"),
                (Genre::FnValue, (6, 5), "::std::iter::empty()"),
                (Genre::BinaryOperator, (6, 11), "-"),
                (Genre::BinaryOperator, (9, 24), "||"),
                (Genre::BinaryOperator, (9, 29), "<"),
            ],
        );
        assert_eq!(switched.apart, [1, 2, 3, 4, 5, 6]);
        assert!(short(&switched).contains("= a && (if on(7) { b < 1 } else { b > 1 }) {"));
    }

    #[test]
    fn columns_are_characters_and_not_bytes() {
        let switched = text("fn f() -> bool {\n    \"äöü\" == \"x\"\n}\n", &[(Genre::BinaryOperator, (2, 11), "!=")]);
        assert!(short(&switched).contains("(if on(1) { \"äöü\" != \"x\" } else { \"äöü\" == \"x\" })"));
    }

    #[test]
    fn a_text_without_mutants_is_as_it_was() {
        let code = "fn f() {\n    let a = 1 + 1;\n}\n";
        assert_eq!(text(code, &[]).text, code);
        assert!(super::switched("fn f(", &[]).is_err());
    }
}
