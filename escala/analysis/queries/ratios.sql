-- One configuration over time, without the drift of the machine: the median of its ratios to one
-- process in each session, in matches of a repeat, with their range.
SELECT
    dataset, workload, strategy, layout, variant, network, machines, series_sha256, session,
    min(started) AS started,
    median(ratio) AS value,
    min(ratio) AS least,
    max(ratio) AS most,
    count(*) AS measurements,
    median(mbit_per_second) AS mbit_per_second,
    median(speed_seconds) AS speed_seconds,
    string_agg(DISTINCT hosts, ', ' ORDER BY hosts) AS hosts,
    string_agg(DISTINCT versions, '; ' ORDER BY versions) AS versions,
    string_agg(DISTINCT source_sha256, ', ' ORDER BY source_sha256) AS source_sha256
FROM measurements
WHERE ratio IS NOT NULL
GROUP BY dataset, workload, strategy, layout, variant, network, machines, series_sha256, session
ORDER BY dataset, workload, strategy, layout, variant, network, machines, series_sha256, started
