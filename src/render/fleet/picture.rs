//! A schedule as a picture, and as a page for a browser.

use super::{METHODS, Page, time};
use trainwright_pictures::gantt::{Gantt, GanttBox};
use trainwright_pictures::html::{Section, page};

impl Page<'_> {
    /// The schedule as a picture.
    pub fn picture(&self) -> Gantt {
        let instance = &self.fleet.instance;
        let kinds = instance.nodes();
        let name = |(node, kind): (usize, &usize)| (format!("node {node}"), instance.kinds[*kind].gpus);
        let boxes = self.answer.schedule.placed.iter().flat_map(|entry| {
            let of = &instance.jobs[entry.job];
            let choice = entry.choice_of(instance);
            let (start, end) = (entry.start as f64 / 3600.0, entry.end as f64 / 3600.0);
            entry.nodes.iter().map(move |node| GanttBox {
                name: of.name.clone(),
                tip: format!(
                    "{}: {} GPUs, {}, {} to {}",
                    of.name,
                    choice.gpus,
                    choice.plan,
                    time(entry.start),
                    time(entry.end)
                ),
                colour: entry.job,
                node: *node,
                gpus: entry.gpus.clone(),
                hours: (start, end),
            })
        });
        Gantt {
            title: format!(
                "{} jobs on {}: {}",
                instance.jobs.len(),
                self.fleet.cluster.name,
                time(self.answer.schedule.makespan())
            ),
            nodes: kinds.iter().enumerate().map(name).collect(),
            boxes: boxes.collect(),
        }
    }

    /// A page for a browser.
    pub fn html(&self) -> String {
        let picture = self.picture();
        let (title, entries, methods) = (picture.title.clone(), self.entries(), self.methods());
        let mut sections = vec![Section::Gantt(picture)];
        sections.extend(
            self.figures().into_iter().map(|(name, words)| Section::Text(format!("{name}: {words}"))),
        );
        sections.extend([
            Section::Heading("Jobs".into()),
            self.jobs(&entries).section(),
            Section::Heading("Beside it".into()),
            self.beside(&methods).section(),
            Section::Text(METHODS.into()),
        ]);
        sections.extend(self.changes().into_iter().map(Section::Text));
        page(&title, &sections)
    }
}
