//! What a copy says its files should hold, and files that are replaced.

use super::*;
use crate::comparing::{Compared, compare_finished, compare_part, mend_path, remove_unused};

/// Tables and sealed segments, and files that grow.
fn world() -> World {
    let mut world = World::new(11);
    for _ in 0..4 {
        (0..6).for_each(|_| world.put());
        world.seal();
        world.flush();
    }
    (0..4).for_each(|_| world.put());
    world
}

fn compare(copy: &Copy<'_>, file: FileName, content: ContentId) -> Compared {
    compare_finished(&copy.path, file, content, &mut |_| true).unwrap()
}

/// The finished files of the world, with what they hold.
fn finished(world: &World) -> BTreeMap<FileName, ContentId> {
    let growing = |file: &FileName| file.kind == FileKind::Segment && world.growing.contains(&file.number);
    let files = world.files.iter().filter(|(file, _)| file.is_finished_once() && !growing(file));
    files.map(|(file, bytes)| (*file, content_id(bytes))).collect()
}

fn mend(copy: &mut Copy<'_>, want: &Want) -> Result<bool> {
    let path = mend_path(&copy.path, want);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, &copy.world.contents[&want.content]).unwrap();
    check_fetched(&path, want)?;
    copy.directory().replace(want)
}

#[test]
fn a_copy_knows_what_each_finished_file_should_hold_and_any_can_be_replaced() {
    let world = world();
    let mut copy = caught_up(&world, world.items.len());
    let all = finished(&world);
    let held = copy.directory().held().unwrap();
    assert_eq!(held.finished, all);
    assert!(
        all.keys().any(|file| file.kind == FileKind::Table) && all.keys().any(|file| file.kind == FileKind::Segment)
    );
    assert!(held.absent.is_empty() && held.mark == world.mark);
    for (file, content) in all {
        let (path, good) = (path_of(&copy.path, file), world.files[&file].clone());
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 16;
        for bad in [Some(&flipped[..]), Some(&good[..good.len() - 1]), None] {
            let modified = fs::metadata(&path).unwrap().modified().unwrap();
            match bad {
                Some(bad) => {
                    fs::write(&path, bad).unwrap();
                    // As a device does it, and as a program.
                    if bad.len() == good.len() {
                        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
                    }
                }
                None => fs::remove_file(&path).unwrap(),
            }
            assert!(!matches!(compare(&copy, file, content), Compared::Same), "{file}");
            // It is remembered what it should hold, whatever has become of it.
            assert_eq!(copy.directory().held().unwrap().finished[&file], content);
            assert!(mend(&mut copy, &Want { file, content }).unwrap());
            assert_eq!(compare(&copy, file, content), Compared::Same);
            assert_eq!(fs::read(&path).unwrap(), good);
        }
    }
    // All that is left is the same as before, after a start as well.
    copy.kill();
    assert_eq!(copy.directory().held().unwrap().finished, finished(&world));
    assert_eq!(open_store(&copy.path).len() as u32, world.ids);
}

#[test]
fn who_has_a_file_open_keeps_what_it_had_when_it_is_replaced() {
    let world = world();
    let mut copy = caught_up(&world, world.items.len());
    let (file, content) = finished(&world).into_iter().next().unwrap();
    let path = path_of(&copy.path, file);
    fs::write(&path, b"nothing of the kind").unwrap();
    let (opened, linked) = (File::open(&path).unwrap(), copy.path.join("linked"));
    fs::hard_link(&path, &linked).unwrap();
    assert!(mend(&mut copy, &Want { file, content }).unwrap());
    let mut there = [0; 19];
    opened.read_exact_at(&mut there, 0).unwrap();
    assert_eq!(&there, b"nothing of the kind");
    assert_eq!(fs::read(linked).unwrap(), b"nothing of the kind");
}

#[test]
fn nothing_is_replaced_that_grows_is_to_be_fetched_or_was_not_compared() {
    let world = world();
    let mut copy = caught_up(&world, world.items.len());
    let growing = name(FileKind::Segment, world.growing[0]);
    let bytes = world.files[&growing].clone();
    let want = Want { file: growing, content: content_id(&bytes) };
    let path = mend_path(&copy.path, &want);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, &bytes).unwrap();
    check_fetched(&path, &want).unwrap();
    assert!(!copy.directory().replace(&want).unwrap());
    assert_eq!(fs::read(path_of(&copy.path, growing)).unwrap(), bytes);
    // Nothing was fetched, or something else, or it is removed again before.
    let (file, content) = finished(&world).into_iter().next().unwrap();
    let want = Want { file, content };
    assert!(matches!(copy.directory().replace(&want), Err(Error::Missing { .. })));
    let path = mend_path(&copy.path, &want);
    fs::write(&path, b"nothing of the kind").unwrap();
    assert!(matches!(check_fetched(&path, &want), Err(Error::Mismatch { .. })));
    assert!(matches!(copy.directory().replace(&want), Err(Error::Missing { .. })));
    fs::write(&path, &world.contents[&content]).unwrap();
    check_fetched(&path, &want).unwrap();
    remove_unused(&copy.path).unwrap();
    assert!(matches!(copy.directory().replace(&want), Err(Error::Missing { .. })));
    assert_eq!(compare(&copy, file, content), Compared::Same);
}

#[test]
fn parts_of_what_grows_are_compared_with_what_is_recorded() {
    let world = world();
    let mut copy = caught_up(&world, world.items.len());
    let parts = copy.directory().held().unwrap().growing;
    for kind in [FileKind::Segment, FileKind::Wal, FileKind::Manifest] {
        let part = *parts.iter().find(|part| part.file.kind == kind).unwrap();
        let (path, good) = (path_of(&copy.path, part.file), world.files[&part.file].clone());
        assert_eq!(part.len, good.len() as u64);
        let compare = || compare_part(&copy.path, part, &mut |_| true).unwrap();
        assert_eq!(compare(), Compared::Same, "{kind:?}");
        let mut bad = good.clone();
        bad[good.len() - 1] ^= 1;
        fs::write(&path, bad).unwrap();
        assert!(matches!(compare(), Compared::Differs(_)), "{kind:?}");
        fs::write(&path, good).unwrap();
    }
}

#[test]
fn after_an_engine_had_it_open_a_copy_knows_what_that_has_finished_and_removed() {
    let world = world();
    let mut copy = opened(&world);
    assert!(copy.directory().held().is_err());
    // As the primary's source does.
    let removed = *finished(&world).keys().find(|file| file.kind == FileKind::Table).unwrap();
    let made = name(FileKind::Table, 999_999);
    fs::write(path_of(&copy.path, made), b"a table").unwrap();
    let mut catalog = Catalog::open(&copy.path).unwrap();
    catalog.put(made, content_id(b"a table")).unwrap();
    fs::remove_file(path_of(&copy.path, removed)).unwrap();
    catalog.remove(removed).unwrap();
    drop(catalog);
    copy.directory().closed(in_epoch(2, 5), 7).unwrap();
    let held = copy.directory().held().unwrap();
    assert_eq!(held.finished.get(&made), Some(&content_id(b"a table")));
    assert!(!held.finished.contains_key(&removed) && held.growing.is_empty());
    // What is put later is behind what the source had written.
    fs::write(path_of(&copy.path, made), b"damaged").unwrap();
    let want = Want { file: made, content: content_id(b"a table") };
    let path = mend_path(&copy.path, &want);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, b"a table").unwrap();
    check_fetched(&path, &want).unwrap();
    assert!(copy.directory().replace(&want).unwrap());
    let catalog = Catalog::open(&copy.path).unwrap();
    assert_eq!(catalog.get(made), Some(want.content));
    assert_eq!(catalog.get(removed), None);
    assert_eq!(catalog.entries().count(), finished(&world).len());
}
