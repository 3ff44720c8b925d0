# Genomes, one FASTA file per class, from the source the dataset names.
#
# REQUIRED INPUTS: none, or what the source names: a folder, lists of accessions, a lock file, or
#   NCBI over the network.
# OUTPUTS:
#   results/{experiment}/data/{dataset}/sequences/{class}.fasta
#   results/{experiment}/data/{dataset}/lock.tsv    class, accession, length and SHA-256 of each
#
# The lock file, committed and named in the config as `source.lock`, makes the same config give the
# same bytes a year later. What a download has received stands in `.partial` until it is complete:
# Snakemake does not know of it and so does not remove it when the job fails.


rule genomes:
    input:
        source_files,
    output:
        sequences=directory(f"{DATA}/sequences"),
        lock=f"{DATA}/lock.tsv",
    log:
        "results/{experiment}/logs/{dataset}/genomes.log",
    priority: FIRST
    localrule: True
    conda:
        "../envs/prepare.yaml"
    params:
        code=code("scripts.acquire"),
        source=lambda wildcards: json.dumps(dataset(wildcards)["source"]),
        classes=lambda wildcards: dataset(wildcards)["classes"],
        partial=f"{DATA}/.partial",
    message:
        "Acquire the genomes of {wildcards.dataset}"
    shell:
        """
        python -m scripts.acquire \
            --source {params.source:q} \
            --classes {params.classes:q} \
            --inputs {input:q} \
            --output {output.sequences:q} \
            --lock {output.lock:q} \
            --partial {params.partial:q} 2>&1 | tee -i {log:q}
        """
