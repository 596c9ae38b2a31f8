//! Decks and videos: the parents of jobs, what the product shows.

use anyhow::{Context, Result};
use sqlx::{PgPool, query_as};

/// A deck that is going to be inserted.
#[derive(Clone, Debug)]
#[must_use = "a row that is not inserted tests nothing"]
pub struct Deck {
    id: String,
    status: &'static str,
    export_status: &'static str,
}

impl Deck {
    pub fn draft(id: &str) -> Self {
        Self { id: id.into(), status: "DRAFT", export_status: "NONE" }
    }

    pub fn generating(id: &str) -> Self {
        Self { status: "GENERATING", ..Self::draft(id) }
    }

    pub fn ready(id: &str) -> Self {
        Self { status: "READY", ..Self::draft(id) }
    }

    /// With an export under way.
    pub fn exporting(mut self) -> Self {
        self.export_status = "EXPORTING";
        self
    }

    /// Inserts the row, titled `Deck ID`.
    pub async fn insert(self, db: &PgPool) -> Result<()> {
        sqlx::query(
            "INSERT INTO \"SlideDeck\" (id, title, status, \"exportStatus\")
             VALUES ($1, 'Deck ' || $1, $2::text::\"DeckStatus\", $3::text::\"ExportStatus\")",
        )
        .bind(&self.id)
        .bind(self.status)
        .bind(self.export_status)
        .execute(db)
        .await
        .with_context(|| format!("inserting deck {}", self.id))?;
        Ok(())
    }

    /// The row as it is now. None: gone.
    pub async fn read(db: &PgPool, id: &str) -> Result<Option<DeckRow>> {
        let row =
            query_as("SELECT status::text, \"exportStatus\"::text, error FROM \"SlideDeck\" WHERE id = $1")
                .bind(id)
                .fetch_optional(db)
                .await
                .with_context(|| format!("reading deck {id}"))?;
        Ok(row.map(|(status, export_status, error)| DeckRow { status, export_status, error }))
    }
}

/// A deck as a test looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeckRow {
    pub status: String,
    pub export_status: String,
    pub error: Option<String>,
}

/// A video that is going to be inserted, with its tracks.
#[derive(Clone, Debug)]
#[must_use = "a row that is not inserted tests nothing"]
pub struct Video {
    id: String,
    status: &'static str,
    export_status: &'static str,
    narration_status: &'static str,
    tracks: u32,
}

impl Video {
    pub fn draft(id: &str) -> Self {
        let none = "NONE";
        Self { id: id.into(), status: "DRAFT", export_status: none, narration_status: none, tracks: 0 }
    }

    pub fn composing(id: &str) -> Self {
        Self { status: "COMPOSING", ..Self::draft(id) }
    }

    pub fn ready(id: &str) -> Self {
        Self { status: "READY", ..Self::draft(id) }
    }

    pub fn cancelled(id: &str) -> Self {
        Self { status: "CANCELLED", ..Self::draft(id) }
    }

    /// With an export under way.
    pub fn exporting(mut self) -> Self {
        self.export_status = "EXPORTING";
        self
    }

    /// With a narration under way.
    pub fn narrating(mut self) -> Self {
        self.narration_status = "NARRATING";
        self
    }

    /// With so many tracks, one second each, at positions from 0.
    pub fn tracks(mut self, tracks: u32) -> Self {
        self.tracks = tracks;
        self
    }

    /// Inserts the row, titled `Video ID`, and its tracks: ids `ID-track-0` …, kind `clip`.
    pub async fn insert(self, db: &PgPool) -> Result<()> {
        sqlx::query(
            "INSERT INTO \"Video\" (id, title, status, \"exportStatus\", narration_status)
             VALUES ($1, 'Video ' || $1, $2::text::\"VideoStatus\", $3::text::\"ExportStatus\", $4)",
        )
        .bind(&self.id)
        .bind(self.status)
        .bind(self.export_status)
        .bind(self.narration_status)
        .execute(db)
        .await
        .with_context(|| format!("inserting video {}", self.id))?;
        sqlx::query(
            "INSERT INTO \"VideoTrack\" (id, \"videoId\", position, kind, \"sourceUrl\", \"startMs\", \"endMs\")
             SELECT $1 || '-track-' || n, $1, n, 'clip', 'media://' || $1 || '/' || n, n * 1000, (n + 1) * 1000
             FROM generate_series(0, $2::int - 1) n",
        )
        .bind(&self.id)
        .bind(i32::try_from(self.tracks).context("too many tracks")?)
        .execute(db)
        .await
        .with_context(|| format!("inserting the tracks of video {}", self.id))?;
        Ok(())
    }

    /// The row as it is now. None: gone.
    pub async fn read(db: &PgPool, id: &str) -> Result<Option<VideoRow>> {
        let row = query_as(
            "SELECT status::text, \"exportStatus\"::text, narration_status, error FROM \"Video\" WHERE id = $1",
        )
        .bind(id)
        .fetch_optional(db)
        .await
        .with_context(|| format!("reading video {id}"))?;
        let named = |(status, export_status, narration_status, error)| VideoRow {
            status,
            export_status,
            narration_status,
            error,
        };
        Ok(row.map(named))
    }
}

/// A video as a test looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoRow {
    pub status: String,
    pub export_status: String,
    pub narration_status: String,
    pub error: Option<String>,
}
