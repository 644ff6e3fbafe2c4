-- dblock: the tables of a MySQL 8+ or MariaDB 10.6+ store, schema version 1.
-- `dblock init` applies this file; it may be applied any number of times.

-- A row is a lease. The primary key is what excludes.
CREATE TABLE IF NOT EXISTS dblock_lock (
  lock_key    VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  slot        SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  owner_id    CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- UUID, new for each attempt to acquire
  token       BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, -- fencing token; never UNIQUE, never TRUNCATE
  expire_at   BIGINT NOT NULL, -- milliseconds since 1970 UTC, by the server's clock
  acquired_at DATETIME(3) NOT NULL, -- UTC, for people; never compared
  renewals    INT UNSIGNED NOT NULL DEFAULT 0, -- makes each renewal change the row
  ttl_ms      BIGINT UNSIGNED NOT NULL,
  slots       SMALLINT UNSIGNED NOT NULL DEFAULT 1,
  kind        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- 'run' or 'acquire'
  host        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  pid         INT UNSIGNED NOT NULL,
  user_name   VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  command     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  note        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  state       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'held', -- 'held', 'released', 'done' or 'blocked'
  delay_ms    BIGINT NOT NULL DEFAULT 0, -- so much longer nobody is granted an expired lease
  keep_until  BIGINT NOT NULL DEFAULT 0, -- until then nobody is granted the slot, like expire_at
  done_until  BIGINT NOT NULL DEFAULT 0, -- until then a success counts, like expire_at
  PRIMARY KEY (lock_key, slot),
  KEY token (token)
) ENGINE=InnoDB;

-- Who waits, for people to see. No row here decides anything.
CREATE TABLE IF NOT EXISTS dblock_waiter (
  place       BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, -- the order of arrival
  waiter_id   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  lock_key    VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  since       BIGINT NOT NULL, -- like dblock_lock.expire_at
  seen        BIGINT NOT NULL, -- likewise; who has not been seen for long has gone
  host        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  pid         INT UNSIGNED NOT NULL,
  user_name   VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  PRIMARY KEY (place),
  UNIQUE KEY waiter_id (waiter_id),
  KEY lock_key (lock_key)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS dblock_meta (
  name  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  value VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;

INSERT INTO dblock_meta (name, value) VALUES ('schema_version', '1')
  ON DUPLICATE KEY UPDATE name = name;

-- Lift the token counter to the present time in microseconds, so that tokens
-- stay above all earlier ones after a TRUNCATE, a restored dump or a failover
-- that lost commits. The empty key is no lock's.
INSERT INTO dblock_lock (lock_key, slot, owner_id, token, expire_at, acquired_at, ttl_ms, kind, host, pid, user_name, command)
  VALUES ('', 0, '', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 0, UTC_TIMESTAMP(3), 0, 'init', '', 0, '', '')
  ON DUPLICATE KEY UPDATE lock_key = lock_key;
DELETE FROM dblock_lock WHERE lock_key = '' AND slot = 0;
