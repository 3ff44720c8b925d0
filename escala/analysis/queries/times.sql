-- One configuration over time: the median of its training seconds per epoch in each session, with
-- their range. Rows of one series and one kind of machine may be compared.
SELECT
    dataset, workload, strategy, layout, variant, network, machines, series_sha256, session,
    min(started) AS started,
    median(train_seconds_per_epoch) AS value,
    min(train_seconds_per_epoch) AS least,
    max(train_seconds_per_epoch) AS most,
    count(*) AS measurements,
    median(mbit_per_second) AS mbit_per_second,
    median(speed_seconds) AS speed_seconds,
    string_agg(DISTINCT hosts, ', ' ORDER BY hosts) AS hosts,
    string_agg(DISTINCT versions, '; ' ORDER BY versions) AS versions,
    string_agg(DISTINCT source_sha256, ', ' ORDER BY source_sha256) AS source_sha256
FROM measurements
GROUP BY dataset, workload, strategy, layout, variant, network, machines, series_sha256, session
ORDER BY dataset, workload, strategy, layout, variant, network, machines, series_sha256, started
