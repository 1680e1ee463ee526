//! Damage to a database of SQLite by statements, so that it stays one.

use super::{Draws, Words, numbers};
use rusqlite::{Connection, MAIN_DB};

/// What a cell is set to.
const CELLS: [&str; 12] = [
    "NULL",
    "0",
    "-1",
    "1",
    "9223372036854775807",
    "-9223372036854775808",
    "1e300",
    "'text'",
    "''",
    "zeroblob(100)",
    "start + 1",
    "'aten::mm, seq = 1, op_id = 2, sizes = [[9223372036854775807, 8], [8, 4000000000]]'",
];

/// Objects that stand where a reader expects a table.
const SCHEMAS: [&str; 5] = [
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (copyKind, start, end, deviceId, correlationId, bytes)",
    "DROP TABLE NVTX_EVENTS; CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 \
     FROM n) SELECT start, start + 1 AS end, 1 AS globalTid, 'step 1' AS text FROM n",
    "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",
    "CREATE TABLE g (a INTEGER, b TEXT GENERATED ALWAYS AS (hex(zeroblob(900000000))))",
    "CREATE INDEX i ON StringIds (value)",
];

/// A database of which a few cells, rows or tables are others; `None` if it is none.
pub fn sqlite(intact: &[u8], _: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    let mut database = Connection::open_in_memory().ok()?;
    database.deserialize_read_exact(MAIN_DB, intact, intact.len(), false).ok()?;
    for _ in 0..1 + draws.below(3) {
        let tables = texts(&database, "SELECT name FROM sqlite_master WHERE type = 'table'");
        if tables.is_empty() {
            break;
        }
        let table = &tables[draws.below(tables.len())];
        let columns = texts(&database, &format!("SELECT name FROM pragma_table_info('{table}')"));
        let column = columns.get(draws.below(columns.len().max(1))).cloned().unwrap_or_default();
        let number = numbers::whole(draws).min(i64::MAX as u64);
        let cell = draws.of(&CELLS);
        let row = format!("rowid IN (SELECT rowid FROM {table} LIMIT 1 OFFSET {})", draws.below(40));
        let statement = match draws.below(12) {
            0 => format!("DROP TABLE {table}"),
            1 => format!("DELETE FROM {table} WHERE {row}"),
            2 => format!("ALTER TABLE {table} DROP COLUMN {column}"),
            3 => format!("INSERT INTO {table} SELECT * FROM {table} LIMIT 3"),
            4 => draws.of(&SCHEMAS).into(),
            5 | 6 => format!("UPDATE {table} SET {column} = {number} WHERE {row}"),
            7 => format!("UPDATE {table} SET {column} = {cell}"),
            _ => format!("UPDATE {table} SET {column} = {cell} WHERE {row}"),
        };
        // What a database refuses is no damage.
        let _ = database.execute_batch(&statement);
    }
    Some(database.serialize(MAIN_DB).ok()?.to_vec())
}

fn texts(database: &Connection, query: &str) -> Vec<String> {
    let Ok(mut statement) = database.prepare(query) else { return Vec::new() };
    statement.query_map([], |row| row.get(0)).map_or_else(|_| Vec::new(), |rows| rows.flatten().collect())
}
